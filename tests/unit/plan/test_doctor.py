"""A cluster from what dtprof doctor says of one machine."""

import json

import pytest

from dtprof.errors import InputError
from dtprof.plan.machines import gpu_called
from dtprof.plan.reading import cluster_of

GPU = {"name": "NVIDIA H100 80GB HBM3", "memory": 81_559 << 20, "mig": False}
ETHERNET = {"name": "eth0", "kind": "ethernet", "mbit_s": 25_000}
PORTS = [{"name": f"mlx5_{i}:1", "kind": "infiniband", "mbit_s": 400_000} for i in range(8)]


def written(folder, gpus=8, network=(ETHERNET, *PORTS), **gpu):
    (folder / "node.json").write_text(json.dumps({"topology": {"gpus": [{**GPU, **gpu}] * gpus, "network": network}}))
    return folder


def test_nodes_are_like_the_one_that_was_looked_at(tmp_path):
    cluster = cluster_of({"doctor": "node.json", "gpus": 64}, "spec.toml", written(tmp_path))
    assert cluster.gpu == gpu_called("H100 SXM")
    assert (cluster.gpus, cluster.gpus_per_node) == (64, 8)
    assert cluster.memory_bytes == 81_559 << 20
    assert cluster.inter_gb_s == 8 * 50.0


def test_one_machine_is_a_cluster_and_ethernet_counts_where_nothing_else_is(tmp_path):
    cluster = cluster_of("node.json", "spec.toml", written(tmp_path, gpus=2, network=[ETHERNET]))
    assert (cluster.gpus, cluster.gpus_per_node, cluster.inter_gb_s) == (2, 2, 3.125)


@pytest.mark.parametrize(
    ("change", "told"), [({"gpus": 0}, "has no GPU"), ({"mig": True}, "divided"), ({"name": "Abacus 1"}, "not in the hardware")]
)
def test_what_cannot_be_used_is_said(tmp_path, change, told):
    with pytest.raises(InputError, match=told):
        cluster_of("node.json", "spec.toml", written(tmp_path, **change))


@pytest.mark.parametrize("text", ["", "[]", '{"topology": {}}'])
def test_another_document_is_refused(tmp_path, text):
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(InputError, match="no document of dtprof doctor"):
        cluster_of("node.json", "spec.toml", tmp_path)
    with pytest.raises(InputError, match="No such file"):
        cluster_of("other.json", "spec.toml", tmp_path)

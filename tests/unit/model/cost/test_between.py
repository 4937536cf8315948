"""What the ports between hosts allow a group, by hand and beside what nccl-tests measured on several hosts."""

import pytest

from dtprof.catalogue.hardware import gpu_of
from dtprof.model.cost.between import line_between
from dtprof.model.cost.expected import expected
from dtprof.model.cost.nccl import Links, time_ns
from dtprof.run import Manifest, MemoryStore, Part, Run

A100, H100 = gpu_of("NVIDIA A100-SXM4-80GB"), gpu_of("NVIDIA H100 80GB HBM3")
MIB = 1 << 20


def port(name, gbit_s, **more):
    return {"name": name, "kind": "infiniband" if ":" in name else "ethernet", "mbit_s": gbit_s and gbit_s * 1000, **more}


def rdma(count, gbit_s):
    return [port(f"mlx5_{at}:1", gbit_s) for at in range(count)]


def job(hosts, ports, world_size=None):
    """A run with one part per letter of ``hosts``; ``ports`` of every host, or by host."""
    told = ports if isinstance(ports, dict) else dict.fromkeys(hosts, ports)
    parts = [
        Part(ordinal=r, rank=r, host=host, world_size=world_size or len(hosts), extra={"network": told[host]})
        for r, host in enumerate(hosts)
    ]
    return Run(Manifest(parts=parts), MemoryStore({}), "by hand", "dtprof")


def line(run, ranks=None, gpu=A100):
    return line_between(run, [p for p in run.parts if ranks is None or p.rank in ranks], gpu)


def test_a_whole_host_has_all_its_ports():
    assert line(job("a" * 8 + "b" * 8, rdma(8, 200))) == (200.0, 200.0)


def test_a_part_of_a_host_has_between_its_share_and_what_its_slots_pass():
    run = job("a" * 8 + "b" * 8, rdma(8, 200))
    assert line(run, {0, 1, 8, 9}) == (50.0, 63.0)
    # of two ports for eight ranks a quarter of one each
    assert line(job("a" * 8 + "b" * 8, rdma(2, 200)), {0, 8}) == (6.25, 31.5)


def test_a_rank_takes_no_more_than_its_slot_passes_and_counts_on_one_port():
    assert line(job("ab", rdma(4, 400)), gpu=H100) == (50.0, 63.0)


def test_the_narrowest_host_counts():
    assert line(job("aabb", {"a": rdma(2, 200), "b": rdma(1, 100)})) == (12.5, 12.5)


def test_ranks_that_are_not_recorded_may_share_the_ports():
    assert line(job("ab", rdma(1, 200), world_size=4)) == (pytest.approx(25 / 3), 25.0)


def test_interfaces_count_where_there_is_no_rdma_and_only_real_ones():
    ports = [port("eth0", 100, physical=True), port("docker0", 10, physical=False), port("eth1", None, physical=True)]
    assert line(job("ab", ports)) == (12.5, 12.5)
    assert line(job("ab", [*ports, *rdma(1, 200)])) == (25.0, 25.0)


@pytest.mark.parametrize("ports", [[], [port("eth0", None)], [port("veth1", 10, physical=False)], {"a": rdma(1, 200), "b": []}])
def test_ports_without_a_stated_speed_allow_nothing(ports):
    assert "are not recorded" in line(job("ab", ports))


def test_a_range_over_nodes_by_hand():
    size = 256 * MIB
    found = expected("all_reduce", size, 16, 2, A100, (100.0, 200.0))
    # NCCL counts 20 GB/s of each of twelve NVLinks inside, and 24 channels
    fast, slow = (time_ns("all_reduce", size, 16, 2, Links("nvlink", 240.0, rate, 24, 80)) for rate in (200.0, 100.0))
    # each byte crosses the line once at best
    assert found.low_ns == pytest.approx(size / 200.0)
    assert found.high_ns == pytest.approx(1.5 * slow + 60e3)
    three = expected("all_reduce", size, 24, 3, A100, (200.0, 200.0))
    assert three.low_ns == pytest.approx(time_ns("all_reduce", size, 24, 3, Links("nvlink", 240.0, 200.0, 24, 80)) / 1.2)
    assert fast < slow
    assert "100 to 200 GB/s" in found.source


def test_uneven_hosts_and_unknown_lines_are_said():
    assert "spread unevenly" in expected("all_reduce", MIB, 3, 2, A100, (25.0, 25.0))
    assert "several hosts" in expected("all_reduce", MIB, 16, 2, A100)
    assert "not modelled" in expected("all_to_all", MIB, 16, 2, A100, (25.0, 25.0))


def test_gpus_without_a_model_of_their_links_have_a_line_as_well():
    found = expected("all_reduce", 64 * MIB, 24, 3, gpu_of("AMD Instinct MI300X"), (400.0, 400.0))
    assert found.low_ns == pytest.approx(23 / 12 * 64 * MIB / 400 / 1.2)


# us of nccl-tests' all-reduces of 16, 128 and 1024 MiB that people published, with what the poster or a maintainer says of them
PUBLISHED = {
    # gpu, hosts, GPUs of each, GB/s of its ports
    "nccl-tests 309, 2 hosts": (H100, 2, 8, 400.0, (185.4, 748.3, 4484.9)),
    "nccl-tests 309, 2 hosts, ring": (H100, 2, 8, 400.0, (199.3, 795.8, 5236.2)),
    "nccl-tests 309, 4 hosts": (H100, 4, 8, 400.0, (259.6, 990.7, 5808.8)),
    "nccl-tests 309, 8 hosts": (H100, 8, 8, 400.0, (510.5, 1395.4, 5640.1)),
    "nccl-tests 309, 8 hosts, untuned": (H100, 8, 8, 400.0, (378.1, 1159.1, 7370.5)),
    "Azure ND A100 v4": (A100, 2, 8, 200.0, (333.4, 1672.7, 11063.0)),
    "DGX A100, DeepOps": (A100, 4, 8, 200.0, (381.0, 2281.2, 11643.0)),
    "DGX-1, two ports of 100 Gb/s, DeepOps": (gpu_of("Tesla V100-SXM2-32GB"), 2, 8, 25.0, (2041.5, 11461.0, 88429.0)),
}
SLOW = {
    "nccl-tests 290, ring": (H100, 2, 8, 400.0, (495.4, 2519.5, 22920.0)),
    "nccl-tests 293, a port at the other socket": (gpu_of("NVIDIA A100-PCIE-40GB"), 2, 1, 25.0, (2619.1, 20889.0, 166733.0)),
    "nccl-tests 293, no GPUDirect": (gpu_of("NVIDIA A100-PCIE-40GB"), 2, 1, 25.0, (1969.1, 15176.0, 122177.0)),
}


def shares(gpu, hosts, near, gb_s, measured_us):
    """What the three sizes reach of the slowest that is plausible, as ``comm.bandwidth`` looks at it."""
    sizes = (16 * MIB, 128 * MIB, 1024 * MIB)
    found = [expected("all_reduce", size, hosts * near, hosts, gpu, (gb_s, gb_s)) for size in sizes]
    assert all(e.low_ns <= us * 1e3 for e, us in zip(found, measured_us, strict=True))
    return [e.high_ns / (us * 1e3) for e, us in zip(found, measured_us, strict=True)]


@pytest.mark.parametrize("setting", PUBLISHED)
def test_healthy_groups_over_hosts_are_not_called_slow(setting):
    smallest, *larger = shares(*PUBLISHED[setting])
    assert smallest > 0.6 and min(larger) > 0.95


@pytest.mark.parametrize("setting", SLOW)
def test_groups_that_their_owners_found_slow_are_seen(setting):
    _, *larger = shares(*SLOW[setting])
    assert max(larger) < 0.6

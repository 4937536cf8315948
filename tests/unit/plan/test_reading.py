"""Models, clusters and layouts from files."""

import json

import pytest

from dtprof.errors import InputError
from dtprof.plan.machines import NODES
from dtprof.plan.presets import preset
from dtprof.plan.reading import bytes_of, cluster_of, layout_of, model_of, rate_of, read_model, read_toml
from dtprof.plan.sizes import total_params

LLAMA_CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "hidden_act": "silu", "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}  # fmt: skip
DEEPSEEK_CONFIG = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280, "hidden_act": "silu",
}  # fmt: skip
GPT2_CONFIG = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257}
MPT_CONFIG = {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4, "max_seq_len": 2048,
              "vocab_size": 50432}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions"),
    [(LLAMA_CONFIG, 8.03), (DEEPSEEK_CONFIG, 671.0), (GPT2_CONFIG, 1.558), (MPT_CONFIG, 6.65)],
    ids=["llama", "deepseek", "gpt2", "mpt"],
)
def test_a_configuration_gives_the_published_parameters(tmp_path, config, billions):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert total_params(read_model("config.json", tmp_path)) / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_configuration_that_is_none(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(InputError, match="num_hidden_layers is missing"):
        read_model("config.json", tmp_path)
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(InputError, match=r"config\.json"):
        read_model("config.json", tmp_path)


def test_a_model_on_top_of_a_preset():
    model = model_of({"preset": "Llama 3 8B", "layers": 16, "name": "half"}, "m.toml")
    assert (model.layers, model.hidden, model.name) == (16, preset("Llama 3 8B").hidden, "half")


def test_a_model_with_experts_from_a_table(tmp_path):
    (tmp_path / "m.toml").write_text(
        "[model]\nlayers = 4\nhidden = 64\nheads = 4\nvocab = 100\n[model.moe]\nexperts = 8\ntop_k = 2\nffn = 32\n"
    )
    model = read_model("m.toml", tmp_path)
    assert (model.moe.experts, model.ffn, model.kv_heads, model.head_dim) == (8, 256, 4, 16)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"layers": 4}, "model.hidden is missing"),
        ({"layers": 4, "hidden": 64, "heads": 4, "vocab": 10, "depth": 3}, "model.depth is not known"),
        ({"layers": "4", "hidden": 64, "heads": 4, "vocab": 10}, "model.layers"),
        ({"layers": 0, "hidden": 64, "heads": 4, "vocab": 10}, "model.layers"),
        ({"layers": True, "hidden": 64, "heads": 4, "vocab": 10}, "model.layers"),
        ({"layers": 4, "hidden": 64, "heads": 4, "vocab": 10, "positions": "sine"}, "positions"),
        ({"preset": "Lama"}, "no preset"),
        (3, "model is 3"),
    ],
)
def test_a_table_that_is_no_model(table, said):
    with pytest.raises(InputError, match=said):
        model_of(table, "m.toml")


def test_a_cluster_fills_in_what_the_catalogue_knows():
    cluster = cluster_of({"gpu": "H100 SXM", "gpus": 64, "inter": "8x400 Gbit/s"}, "c.toml")
    assert (cluster.gpus_per_node, cluster.nodes, cluster.memory_bytes) == (8, 8, 80 * 10**9)
    assert (cluster.intra_gb_s, cluster.inter_gb_s) == (450.0, 400.0)
    small = cluster_of({"gpu": "L4", "gpus": 2, "memory": "22.5 GiB"}, "c.toml")
    assert small.memory_bytes == int(22.5 * 2**30)
    assert small.intra_gb_s > 0


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"gpu": "H99"}, "not in the hardware catalogue"),
        ({"preset": "DGX H99", "gpus": 8}, "one of DGX A100"),
        ({"gpu": "H100", "gpus": 16}, "inter is missing"),
        ({"gpu": "H100", "gpus": 12, "inter": "50 GB/s"}, "8 would do"),
        ({"gpu": "H100", "gpus": 8, "memory": "80"}, "is no size"),
        ({"gpu": "H100", "gpus": 16, "inter": "400"}, "is no rate"),
        ({"gpu": "H100", "gpus": 0}, "cluster.gpus"),
        ({"gpu": "H100", "nodes": 2}, "cluster.nodes is not known"),
        ({"gpu": "H100", "pod_share": 0}, "pod_share"),
    ],
)
def test_a_table_that_is_no_cluster(table, said):
    with pytest.raises(InputError, match=said):
        cluster_of(table, "c.toml")


@pytest.mark.parametrize("name", NODES)
def test_nodes_that_are_sold(name):
    cluster = cluster_of({"preset": name, "gpus": 144}, "c.toml")
    assert (cluster.gpus, cluster.name, cluster.nodes) == (144, name, 144 // cluster.gpus_per_node)
    assert cluster.inter_gb_s > 0
    assert cluster_of({"preset": name, "gpus": 4, "memory": "40 GB"}, "c.toml").memory_bytes == 40 * 10**9


def test_bits_are_not_bytes():
    assert rate_of("400 Gbit/s", "x") == rate_of("400Gbps", "x") == 50.0
    assert rate_of("8x200Gbps", "x") == 200.0
    assert rate_of("50 GB/s", "x") == 50.0
    assert rate_of("3.2 TB/s", "x") == 3200.0
    assert bytes_of("80 GB", "x") == 80 * 10**9 < bytes_of("80 GiB", "x")


def test_a_layout_from_a_table():
    layout = layout_of({"dp": 2, "micro_batch": 1, "global_batch": 8, "seq": 128, "offload": "optimizer"}, "l.toml")
    assert layout.offload == ("optimizer",)
    with pytest.raises(InputError, match=r"layout\.seq is missing"):
        layout_of({"dp": 2, "micro_batch": 1, "global_batch": 8}, "l.toml")
    with pytest.raises(InputError, match="optimiser"):
        layout_of({"dp": 2, "micro_batch": 1, "global_batch": 8, "seq": 1, "offload": ["optimiser"]}, "l.toml")


def test_a_file_that_is_no_toml(tmp_path):
    (tmp_path / "m.toml").write_text("layers = four")
    with pytest.raises(InputError, match=r"m\.toml"):
        read_toml(tmp_path / "m.toml")
    with pytest.raises(InputError, match="no such file"):
        read_toml(tmp_path / "none.toml")


def test_groups_of_experts_limit_the_nodes_of_a_token(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**DEEPSEEK_CONFIG, "n_group": 8, "topk_group": 4}))
    limited = read_model("config.json", tmp_path).moe
    assert limited is not None
    assert limited.node_limit == 4
    # one group is no limit
    (tmp_path / "config.json").write_text(json.dumps({**DEEPSEEK_CONFIG, "n_group": 1, "topk_group": 1}))
    free = read_model("config.json", tmp_path).moe
    assert free is not None
    assert free.node_limit == 0


def test_a_cluster_says_how_much_memory_its_hosts_have():
    told = cluster_of({"gpu": "H100 SXM", "gpus": 8, "host_memory": "1 TB"}, "spec")
    assert told.host_memory_bytes == 10**12
    assert cluster_of({"preset": "DGX H100", "gpus": 8}, "spec").host_memory_bytes == 2 * 10**12
    assert cluster_of({"gpu": "H100 SXM", "gpus": 8}, "spec").host_memory_bytes == 0
    with pytest.raises(InputError, match="host_memory"):
        cluster_of({"gpu": "H100 SXM", "gpus": 8, "host_memory": "lots"}, "spec")


@pytest.mark.parametrize(("key", "value"), [("node_limit", -3), ("top_k", 0), ("experts", -8), ("every", 0)])
def test_sizes_of_experts_below_their_least_are_refused(key, value):
    table = {"preset": "Mixtral 8x7B", "moe": {"experts": 8, "top_k": 2, "ffn": 14336, key: value}}
    with pytest.raises(InputError, match=rf"model.moe.{key} = {value}"):
        model_of(table, "spec")

"""Rows of tables as plans: words as sources write them, what is assumed, and what is never read."""

import pytest

from dtprof.plan import row_words
from dtprof.plan.machines import gpu_called
from dtprof.plan.rows import READ, CannotPredict, parse
from dtprof.plan.software import SOFTWARE, software

LLAMA = {
    "source": "a table",
    "model": "Llama 3 8B",
    "seq": "8192",
    "gpus": "16",
    "gpu_type": "H100 80GB",
    "inter_bw": "8x400Gbps/node",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "dp": "16",
    "zero_stage_sharding": "FSDP2",
    "micro_batch": "1",
    "global_batch": "32",
    "recompute": "none",
    "dtype": "bf16",
    "attn": "flash",
}
VTRAIN = {
    "source": "VIA-Research/vTrain data",
    "model": "GPT L24h1024",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "ffn": "4096",
    "seq": "1024",
    "gpus": "8",
    "gpu_type": "A100 (DGX/8-GPU node)",
    "intra_bw": "150 (their config unit; NVLink3)",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "dp": "2",
    "zero_stage_sharding": "DDP no bucketing overlap (use_gradient_bucket=false)",
    "micro_batch": "4",
    "global_batch": "32",
    "recompute": "full (use_checkpoint=true)",
}


def test_a_preset_with_everything_said():
    plan = parse(LLAMA)
    assert (plan.model.name, plan.cluster.gpus, plan.cluster.gpus_per_node, plan.cluster.inter_gb_s) == (
        "Llama 3 8B",
        16,
        8,
        400,
    )
    assert (plan.layout.dp, plan.layout.zero, plan.layout.microbatches, plan.layout.precision) == (16, 3, 2, "bf16")
    assert plan.assumed == ()


def test_a_row_with_dimensions_of_its_own():
    plan = parse(VTRAIN)
    assert (plan.model.layers, plan.model.hidden, plan.model.vocab, plan.model.gated) == (24, 1024, 50257, False)
    assert (plan.layout.tp, plan.layout.pp, plan.layout.dp, plan.layout.zero) == (2, 2, 2, 0)
    assert plan.software.name == "megatron-2021"
    # a link of a configuration unit is none of ours
    assert plan.cluster.intra_gb_s == 300
    # its composed layer times have no second forward pass
    assert plan.layout.recompute == "none"
    assert any("vocabulary" in one for one in plan.assumed)


def test_dimensions_of_a_row_change_a_preset():
    plan = parse({**LLAMA, "layers": "16", "vocab": "32000"})
    assert (plan.model.layers, plan.model.vocab, plan.model.ffn) == (16, 32000, 14336)


def test_parameters_say_whether_the_feed_forward_part_is_gated():
    row = {**VTRAIN, "model": "mine", "layers": "32", "hidden": "4096", "heads": "32", "ffn": "11008", "vocab": "32000"}
    assert parse({**row, "params": "6.74e9"}).model.gated
    assert not parse({**row, "params": "5.3e9"}).model.gated
    assert parse(row).model.gated


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "ResNet-50 v1.5"}, "no dimensions"),
        ({"seq": ""}, "no sequence length"),
        ({"tp": "3"}, "16 GPUs are not"),
    ],
)
def test_a_row_that_cannot_be_laid_out(changes, said):
    with pytest.raises(CannotPredict, match=said):
        parse({**LLAMA, **changes})


def test_degrees_that_are_not_said_follow_from_the_copies():
    plan = parse({**LLAMA, "gpus": "512", "dp": "32", "tp": "", "pp": "", "micro_batch": "", "global_batch": "512"})
    assert (plan.layout.tp, plan.layout.pp, plan.layout.dp, plan.layout.micro_batch) == (8, 2, 32, 1)
    assert any("tp 8" in one for one in plan.assumed)
    plain = parse({**LLAMA, "micro_batch": "", "global_batch": ""})
    assert plain.layout.global_batch == 16 * plain.layout.micro_batch


def test_a_batch_of_uneven_passes_is_rounded_up():
    assert parse({**LLAMA, "micro_batch": "4", "global_batch": "96"}).layout.microbatches == 2


def test_a_silent_gpu_is_assumed_and_said():
    plan = parse({**VTRAIN, "source": "libai", "gpu_type": "not stated in doc", "dtype": "fp16"})
    assert plan.cluster.gpu.name == "V100 SXM2"
    assert any("V100" in one for one in plan.assumed)


def test_a_rack_of_72_is_one_node():
    plan = parse({**LLAMA, "gpus": "256", "dp": "256", "gpu_type": "DGX-GB200", "inter_bw": "", "global_batch": "256"})
    assert plan.cluster.gpus_per_node == 72
    assert parse({**LLAMA, "gpu_type": "DGX-GB200"}).cluster.nodes == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FULL_SHARD", (3, 0)),
        ("FSDP", (3, 0)),
        ("FSDP2", (3, 0)),
        ("Megatron-FSDP", (3, 0)),
        ("HSDP", (3, -1)),
        ("SHARD_GRAD_OP", (2, 0)),
        ("ZeRO-1 group=8 (-1=all dp)", (1, 8)),
        ("ZeRO-1 group=-1 (-1=all dp)", (1, 0)),
        ("ZeRO-0", (0, 0)),
        ("zero3", (3, 0)),
        ("ZeRO stage 2", (2, 0)),
        ("DDP (no ZeRO)", (0, 0)),
        ("", (0, 0)),
        ("DDP (native), grad accumulation", (0, 0)),
        ("distributed optimizer", (1, 0)),
        ("DDP no bucketing overlap (use_gradient_bucket=false)", (0, 0)),
    ],
)
def test_sharding(text, found):
    assert row_words.zero_of(text, "fsdp2") == found


def test_megatron_core_shards_its_optimizer():
    assert row_words.zero_of("DDP (FSDP=0)", "megatron-core") == (1, 0)
    assert parse({**LLAMA, "zero_stage_sharding": "HSDP"}).layout.shard == 8


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", "none"),
        ("", "none"),
        ("full (uniform)", "full"),
        ("full", "full"),
        ("selective", "selective"),
        ("selective []", "none"),
        ("selective core_attn", "selective"),
        ("full (--checkpoint-activations)", "full"),
        ("true", "full"),
        ("false", "none"),
        ("selective(default)", "selective"),
        ("SAC", "full"),
    ],
)
def test_recomputation(text, found):
    assert row_words.recompute_of(text, "a table") == found


@pytest.mark.parametrize(
    ("text", "gpu", "found"),
    [
        ("bf16", "H100", "bf16"),
        ("amp_bf16", "A100", "bf16"),
        ("", "A100", "bf16"),
        ("", "V100", "fp16"),
        ("bf16", "V100", "fp16"),
        ("fp16", "V100", "fp16"),
        ("amp", "A100", "fp16"),
        ("tf32", "A100", "tf32"),
        ("fp32", "V100", "fp32"),
        ("FP8-CS", "H100", "fp8"),
        ("MXFP8", "B200", "fp8"),
        ("float8", "H100", "fp8"),
        ("NVFP4", "GB200", "fp4"),
        ("fp8", "A100", "bf16"),
        ("tf32", "V100", "fp32"),
    ],
)
def test_precision(text, gpu, found):
    assert row_words.precision_of(text, gpu_called(gpu), "a table") == found


def test_a_bridge_without_a_type_runs_in_eight_bits():
    assert row_words.precision_of("", gpu_called("H100"), "NVIDIA-NeMo/Megatron-Bridge") == "fp8"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("flash (yaml attn_impl)", "flash"),
        ("SDPA flash", "flash"),
        ("unfused+fused softmax (2021)", "unfused"),
        ("", "unfused"),
    ],
)
def test_attention(text, found):
    assert row_words.attention_of(text, software("megatron-2021")) == found


def test_attention_without_a_word_is_that_of_the_software():
    assert row_words.attention_of("", software("fsdp2")) == "flash"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("VIA-Research/vTrain", "megatron-2021"),
        ("mosaicml/llm-foundry", "fsdp-2023"),
        ("InternLM/InternEvo", "internevo-2024"),
        ("foundation-model-stack/fms-fsdp", "fsdp-compile"),
        ("pytorch/torchtitan", "fsdp2-compile"),
        ("NVIDIA-NeMo/Megatron-Bridge", "megatron-core"),
        ("NVIDIA/DeepLearningExamples", "ddp-binned"),
        ("Narayanan 2021 arXiv:2104.04473", "megatron-2021"),
        ("NVIDIA/Megatron-LM README", "megatron-2021"),
        ("AMD-AGI/Primus", "megatron-core"),
        ("huggingface/nanotron", "eager-flash"),
    ],
)
def test_software_by_source(source, found):
    assert row_words.software_of(source, "", gpu_called("A100"), 1) == found
    assert found in SOFTWARE


def test_software_of_an_unknown_source_follows_from_its_layout():
    assert row_words.software_of("somebody", "FSDP", gpu_called("H100"), 8) == "fsdp2-compile"
    assert row_words.software_of("somebody", "", gpu_called("H100"), 8) == "megatron-core"
    assert row_words.software_of("somebody", "", gpu_called("V100"), 8) == "megatron-2021"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("64", 64),
        ("7e9", 7e9),
        ("0.498e9", 498e6),
        ("1,024", 1024),
        ("70B", 70e9),
        ("", None),
        (None, None),
        ("n/a", None),
        ("1.2.3", None),
    ],
)
def test_numbers(text, found):
    assert row_words.number_of(text) == found


def test_conventions_by_source():
    assert row_words.convention_of("mosaicml/llm-foundry", "full") == "PaLM"
    assert row_words.convention_of("Megatron-Bridge", "") == "causal"
    assert row_words.convention_of("arXiv:2104.04473", "full (uniform)") == "Megatron, full recompute"
    assert row_words.convention_of("InternLM/InternEvo", "none") == "Megatron"


@pytest.mark.parametrize("row", [LLAMA, VTRAIN], ids=["preset", "dimensions"])
def test_nothing_measured_and_no_note_is_read(row):
    noise = {
        "step_time_s": "1e9",
        "tokens_s_gpu": "-3",
        "tflops_gpu": "x",
        "mfu": "HFU=12",
        "peak_mem_gb": "nan",
        "notes": "tp=8; FSDP+compile; H200; micro_num=99",
        "extra": "full",
    }
    assert parse({**row, **noise}) == parse(row)
    assert not set(noise) & set(READ)


def test_sequence_parallelism_is_said_beside_recomputation_or_a_default():
    assert row_words.sequence_parallel_of("selective + sequence parallel", "megatron-2021")
    assert not row_words.sequence_parallel_of("selective", "megatron-2021")
    assert row_words.sequence_parallel_of("", "megatron-core")

"""Words of published tables: precision, sharding, recomputation, attention, and whose software a source ran."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, cast

from dtprof.catalogue.hardware import Gpu
from dtprof.plan.spec import AttentionKind, Model, Optimizer, Precision, Recompute, Software

# by a word of the source, the first that is found
_SOURCES: tuple[tuple[str, str], ...] = (
    (r"vtrain", "megatron-2021"),
    (r"llm-?foundry|mosaic", "fsdp-2023"),
    (r"interne?vo|internlm", "internevo-2024"),
    (r"fms-?fsdp|foundation-model-stack", "fsdp-compile"),
    (r"torchtitan.*202[5-9]", "fsdp2-compile-2025"),
    (r"torchtitan|automodel", "fsdp2-compile"),
    (r"nanotron|picotron", "eager-flash"),
    (r"bridge|nemo|megatron-core|mcore|primus|megascale", "megatron-core"),
    (r"deeplearningexamples", "ddp-binned"),
    (r"jan\w*[-_ ]?2021|megatron.*2020", "megatron-2020"),
    (r"dlperf|libai|oneflow|2104\.04473|2205\.05198|megatron", "megatron-2021"),
)
# by whose count of operations a source prints FLOP/s; names of dtprof.catalogue.flops
_CONVENTIONS: tuple[tuple[str, str], ...] = (
    (r"llm-?foundry|mosaic|torchtitan|nanotron", "PaLM"),
    (r"bridge|nemo|automodel|primus", "causal"),
    (r"2205\.05198", "Megatron"),
    (r"interne?vo|2104\.04473|megatron|dlperf|vtrain", "Megatron, full recompute"),
)
# composed by a simulator whose layer times have no recomputed pass in them, whatever its settings say (docs/planner.md)
_NOT_RECOMPUTED = r"vtrain"
_PRECISIONS = (
    ("fp4", "fp4"), ("fp8|float8|e4m3", "fp8"), ("tf32", "tf32"), ("fp32|float32", "fp32"), ("bf16|bfloat", "bf16"),
    ("fp16|float16|half|amp", "fp16"),
)  # fmt: skip
_ABSENT = ("", "-", "–", "n/a", "na", "none", "null", "nan", "no", "false", "off", "disabled", "0")
_VOLTA = (70, 75)
_HOPPER = 90


def names_software(source: str) -> bool:
    """Whether a source is known, and with it the generation of software that it ran."""
    return _first(_SOURCES, source) is not None


def software_of(source: str, sharding: str, gpu: Gpu | None, parts: int) -> str:
    """The generation of software whose table it is; guessed from the layout where the source says nothing."""
    found = _first(_SOURCES, source)
    if found:
        return found
    old = gpu is not None and gpu.capability in _VOLTA
    if old:
        return "megatron-2021"
    return "fsdp2-compile" if parts == 1 or zero_of(sharding, "")[0] == 3 else "megatron-core"


def gradients_of(source: str, precision: Precision) -> Literal["fp32", "bf16", "fp16"]:
    """In which gradients are summed: nanotron's benchmarks accumulate in fp32, others in the type of the products."""
    if precision in ("fp32", "tf32") or "nanotron" in source.lower():
        return "fp32"
    return "fp16" if precision == "fp16" else "bf16"


def optimizer_of(source: str, model: Model) -> Optimizer:
    """Adam; with moments in 16 bits where Megatron-Bridge's recipes for latent attention with experts have them."""
    return "adam-bf16" if "bridge" in source.lower() and model.mla is not None else "adam"


def convention_of(source: str, recompute: str) -> str:
    """By whose count the source prints FLOP/s; without a known source, by that of the model's own work under a causal mask."""
    found = _first(_CONVENTIONS, source) or "causal"
    if found == "Megatron, full recompute" and recompute_of(recompute, "") != "full":
        return "Megatron"
    return found


def memory_of(source: str) -> tuple[str, bool]:
    """The unit of a source's peak memory (GiB where a framework logs bytes over 2^30), and whether it is what is allocated.

    Others print what the allocator has reserved.
    """
    plain = source.lower()
    return ("GiB" if re.search(r"torchtitan|nanotron|bridge", plain) else "GB"), "bridge" in plain


def trains_a_part(source: str) -> bool:
    """Does this source measure fine-tuning, of all parameters or of adapters beside them?"""
    return "automodel" in source.lower()


def precision_of(text: str, gpu: Gpu, source: str) -> Precision:
    """Of matrix products; without a word fp16 on Volta, Megatron-Bridge's fp8 on Hopper and later, bf16 elsewhere."""
    plain = text.lower()
    found = _first(_PRECISIONS, plain)
    if found is None:
        later = (gpu.capability or 0) >= _HOPPER
        found = "fp8" if later and re.search("bridge", source.lower()) else "bf16"
    if found in ("fp8", "fp4") and "fp8" not in gpu.tflops:
        found = "bf16"
    if found == "tf32" and "tf32" not in gpu.tflops:
        found = "fp32"
    return cast("Precision", "fp16" if found == "bf16" and gpu.capability in _VOLTA else found)


def zero_of(text: str, software: str) -> tuple[int, int]:
    """ZeRO stage and the ranks it shards over (0: all), of ``FULL_SHARD``, ``HSDP``, ``ZeRO-1 group=8``, ``DDP``, …"""
    plain = text.lower()
    told = re.search(r"group[_ ]?(?:size)?=?\s*(-?\d+)", plain)
    ranks = max(int(told[1]), 0) if told else 0
    number = re.search(r"zero[-_ ]?(?:stage)?[-_ =]?(\d)", plain)
    if number:
        return min(int(number[1]), 3), ranks
    if re.search(r"hsdp|hybrid", plain):
        return 3, ranks or -1
    if re.search(r"grad_op", plain):
        return 2, ranks
    if re.search(r"full_shard|fsdp(?!=0)", plain):
        return 3, ranks
    if re.search(r"dist\w*[-_ ]?opt", plain) or software == "megatron-core":
        return 1, ranks
    return 0, 0


def recompute_of(text: str, source: str) -> Recompute:
    """Of ``full (uniform)``, ``selective core_attn``, ``selective []``, ``true``, …"""
    plain = text.strip().lower()
    if re.search(_NOT_RECOMPUTED, source.lower()) or plain in _ABSENT or plain.endswith("[]"):
        return "none"
    if re.search(r"sel|core|attn|partial|block", plain) and "full" not in plain:
        return "selective"
    return "full"


def sequence_parallel_of(recompute: str, software: str) -> bool:
    """Whether norms are split over tensor-parallel ranks: as software does by default, or as said beside recomputation."""
    said = re.search(r"\bseq|\bsp\b", recompute.lower()) is not None
    return said or software in ("megatron-core", "eager-flash")


def attention_of(text: str, software: Software) -> AttentionKind:
    """Whether scores exist in memory; by the software where nothing is said."""
    plain = text.lower()
    if re.search(r"unfused|naive|eager|math|baddbmm", plain):
        return "unfused"
    if re.search(r"flash|sdpa|cudnn|xformers|efficient|te\b|fa[123]|flex", plain):
        return "flash"
    return "unfused" if software.attention in ("unfused", "fused-softmax") else "flash"


def number_of(text: str | None) -> float | None:
    """``64``, ``7e9``, ``1,024``, ``70B``; None where there is none."""
    plain = (text or "").strip().lower().replace(",", "").replace("_", "")
    found = re.fullmatch(r"([+-]?[\d.]+(?:e[+-]?\d+)?)\s*([kmbt]?)", plain)
    if found is None:
        return None
    try:
        return float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[found[2]]
    except ValueError:
        return None


def _first(pairs: Iterable[tuple[str, str]], text: str) -> str | None:
    return next((value for pattern, value in pairs if re.search(pattern, text.lower())), None)

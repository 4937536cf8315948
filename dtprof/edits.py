"""Edits: changes of a job or of its surroundings as data, ``ddp.bucket_cap_mb=50``.

One vocabulary for what is predicted, measured and recommended. An edit with ``applied`` "construction" can be put into
force in an unmodified script: the arguments with which DistributedDataParallel, ``fully_shard`` or a DataLoader are
constructed are replaced. The others describe a change that a model can follow and a launcher cannot make.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dtprof.errors import InputError

Value = bool | int | float | str | tuple[float, ...]
Applied = Literal["construction", "prediction"]


@dataclass(frozen=True)
class Key:
    """What may be edited: ``expects`` says type and range in words, ``read`` takes a text or raises ValueError."""

    name: str
    expects: str
    read: Callable[[str], Value]
    what: str
    applied: Applied = "prediction"


@dataclass(frozen=True)
class Edit:
    """One change: ``key`` is one of ``KEYS``; ``value`` is of the key's type (a list is a tuple)."""

    key: str
    value: Value

    @property
    def at_construction(self) -> bool:
        """Can a launcher apply it to an unmodified script?"""
        return KEYS[self.key].applied == "construction"

    def __str__(self) -> str:
        return f"{self.key}={_text(self.value)}"


def parse_edit(text: str) -> Edit:
    """The edit of ``KEY=VALUE``; InputError names the known keys, or the type and range of this one."""
    name, equals, value = (piece.strip() for piece in text.partition("="))
    key = KEYS.get(name)
    if key is None:
        near = difflib.get_close_matches(name, KEYS, 1, cutoff=0.5)
        family = near[0].partition(".")[0] if near else ""
        guess = f"did you mean {near[0]}? keys of {family}" if near else "known keys"
        raise InputError(f"--set {text}: there is no key {name!r}", f"{guess} are {_known(family)}")
    if not equals or not value:
        raise InputError(f"--set {text}: no value", f"write {name}=VALUE, {key.expects}")
    try:
        return Edit(name, key.read(value))
    except ValueError:
        raise InputError(f"--set {text}: {value!r} is no value of {name}", f"give {key.expects}: {key.what}") from None


def parse_edits(texts: Iterable[str]) -> tuple[Edit, ...]:
    """Several edits; InputError where one key is given twice."""
    found: dict[str, Edit] = {}
    for text in texts:
        edit = parse_edit(text)
        if edit.key in found:
            raise InputError(f"--set {edit}: {edit.key} is set twice, before to {_text(found[edit.key].value)}", "give it once")
        found[edit.key] = edit
    return tuple(found.values())


def edits_of(mapping: Mapping[str, Any]) -> tuple[Edit, ...]:
    """Edits from the ``edit`` of a finding, {KEY: VALUE}, with the same checks as a text."""
    return parse_edits(f"{key}={_text(value)}" for key, value in mapping.items())


def as_mapping(edits: Iterable[Edit]) -> dict[str, Any]:
    """{KEY: VALUE} in types that JSON has."""
    return {edit.key: list(edit.value) if isinstance(edit.value, tuple) else edit.value for edit in edits}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _known(family: str) -> str:
    return "; ".join(f"{key.name} ({key.expects})" for key in KEYS.values() if key.name.startswith(family))


# -- readers of values: each raises ValueError


def _bool(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _float(low: float, *, open_below: bool = False, high: float = math.inf) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high or not math.isfinite(value) or (open_below and value == low):
            raise ValueError(text)
        return value

    return read


def _int(low: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if value < low:
            raise ValueError(text)
        return value

    return read


def _choice(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return text.lower()

    return read


def _floats(text: str) -> tuple[float, ...]:
    return tuple(_float(0, open_below=True)(item) for item in text.strip("[]()").split(","))


def _bool_or_size(text: str) -> bool | int:
    try:
        return _bool(text) if text not in ("0", "1") else _int(2)(text)
    except ValueError:
        return _int(2)(text)


_MIB = ("MiB, a number above 0", _float(0, open_below=True))
_FLAG = ("true or false", _bool)
_SCALE = ("a factor above 0", _float(0, open_below=True))
_COUNT = ("a whole number of 1 or more", _int(1))
_FROM_0 = ("a whole number of 0 or more", _int(0))
_RANK = ("a rank, 0 or more", _int(0))
_DTYPE = ("fp32, bf16 or fp16", _choice("fp32", "bf16", "fp16"))
_SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def _key(name: str, kind: tuple[str, Callable[[str], Value]], what: str, applied: Applied = "prediction") -> Key:
    return Key(name, *kind, what, applied)


KEYS = {
    key.name: key
    for key in (
        _key("ddp.bucket_cap_mb", _MIB, "size of a gradient bucket", "construction"),
        _key(
            "ddp.bucket_cap_mb_list",
            ("MiB, numbers above 0 with commas between", _floats),
            "sizes of the gradient buckets, first to last",
            "construction",
        ),
        _key("ddp.static_graph", _FLAG, "the same parameters take part in every step", "construction"),
        _key("ddp.find_unused_parameters", _FLAG, "search the graph for parameters without gradient", "construction"),
        _key("ddp.gradient_as_bucket_view", _FLAG, "gradients are views of the buckets", "construction"),
        _key("ddp.broadcast_buffers", _FLAG, "rank 0's buffers are sent to all in every forward pass", "construction"),
        _key("ddp.first_bucket_mb", _MIB, "size of the first gradient bucket"),
        _key("ddp.accumulation", _COUNT, "backward passes per reduction of gradients (no_sync)"),
        _key("comm.dtype", _DTYPE, "data type in which gradients travel", "construction"),
        _key("comm.powersgd_rank", _COUNT, "rank of PowerSGD's approximation of the gradients",
             "construction"),
        _key("comm.algorithm", ("ring or tree", _choice("ring", "tree")), "NCCL's algorithm for all-reduce"),
        _key("net.bandwidth_scale", _SCALE, "bandwidth of the network, as a multiple of today's"),
        _key("net.latency_scale", _SCALE, "latency of the network, as a multiple of today's"),
        _key("fsdp.reshard_after_forward", ("true, false, or a group size of 2 or more", _bool_or_size),
             "free gathered parameters after the forward pass", "construction"),
        _key("fsdp.prefetch", _FROM_0, "units gathered ahead, in forward and in backward; 0 is torch's own",
             "construction"),
        _key("fsdp.wrap", _COUNT, "layers in one sharded unit"),
        _key("pipeline.schedule", (f"one of {', '.join(_SCHEDULES)}", _choice(*_SCHEDULES)), "order of micro-batches"),
        _key("pipeline.microbatches", _COUNT, "micro-batches per step"),
        _key("pipeline.virtual_stages", _COUNT, "stages per rank"),
        _key("pipeline.balance", ("even", _choice("even")), "every stage takes the mean time of the stages"),
        _key("moe.balance", ("even", _choice("even")), "every expert gets the same number of tokens"),
        _key("moe.capacity_factor", _SCALE, "tokens that an expert takes, as a multiple of the even share"),
        _key("loader.num_workers", _FROM_0, "processes that load data, per rank", "construction"),
        _key("loader.prefetch_factor", _COUNT, "batches that each loading process keeps ready", "construction"),
        _key("loader.pin_memory", _FLAG, "batches lie in page-locked memory", "construction"),
        _key("ideal.rank", _RANK, "this rank computes as fast as the median of its like"),
        _key("ideal.communication", _FLAG, "no rank waits for communication"),
        _key("ideal.loader", _FLAG, "no rank waits for input"),
        _key("compute.matmul_scale", _SCALE, "speed of matrix products, as a multiple of today's"),
        _key("compute.attention_scale", _SCALE, "speed of attention kernels, as a multiple of today's"),
        _key("compute.elementwise_scale", _SCALE, "speed of element-wise kernels, as a multiple of today's"),
    )
}  # fmt: skip

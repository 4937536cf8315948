"""Every collective as torch's flight recorder saw it being issued: what gloo's own trace lacks and NCCL's repeats.

Recent torch records 2,000 entries by itself. TORCH_FR_BUFFER_SIZE (for NCCL and older torch: TORCH_NCCL_TRACE_BUFFER_SIZE),
set before the process group is made, gives the number; 0 switches it off. The newest entries are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any

# torch's scalar type -> name, bytes
DTYPES = {
    "Float": ("float32", 4), "Double": ("float64", 8), "Half": ("float16", 2), "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8), "Int": ("int32", 4), "Short": ("int16", 2), "Char": ("int8", 1), "Byte": ("uint8", 1),
    "Bool": ("bool", 1), "Float8_e4m3fn": ("float8_e4m3fn", 1), "Float8_e5m2": ("float8_e5m2", 1),
    "ComplexFloat": ("complex64", 8), "ComplexDouble": ("complex128", 16),
}  # fmt: skip

# what a name holds -> operation of dtprof.schema.OPS; the first match counts
_OPS = (
    ("reduce_scatter", "reduce_scatter"), ("all_reduce", "all_reduce"), ("allreduce", "all_reduce"),
    ("all_gather", "all_gather"), ("allgather", "all_gather"), ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"), ("barrier", "barrier"), ("reduce", "reduce"), ("gather", "gather"), ("scatter", "scatter"),
    ("send", "send"), ("recv", "recv"),
)  # fmt: skip


def dump() -> dict[str, Any] | None:
    """The recorder's content, or None where this torch has none or nothing was recorded.

    Its own list of groups is empty on gloo once a second group was made; ``members`` has the ranks of every live group.
    """
    import torch

    c10d = getattr(torch._C, "_distributed_c10d", None)
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        function = getattr(c10d, name, None)
        if function is None:
            continue
        text = function(True, False)
        found: dict[str, Any] = json.loads(text) if text else {}
        if found.get("entries"):
            return {**found, "members": _live_groups()}
    return None


def _live_groups() -> dict[str, list[int]]:
    """Name of each group that this process is in, as torch registered it -> its ranks."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return {}
    return {name: dist.get_process_group_ranks(group) for group, name in dist.distributed_c10d._world.pg_names.items()}


def operations(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of collectives.jsonl (without order and step), in the order of issue."""
    members = {name: _ranks(group.get("ranks")) for name, group in (found.get("pg_config") or {}).items()}
    members |= found.get("members", {})
    everyone = members.get("", members.get("0"))
    for entry in found["entries"]:
        group, description = (*entry.get("process_group", ()), "", "")[:2]
        ranks = members.get(group)
        if ranks is None and description == "default_pg":
            ranks = everyone
        name = str(entry.get("profiling_name", ""))
        yield {
            "group": group,
            "description": description,
            "ranks": ranks,
            "seq": entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id"),
            "p2p": bool(entry.get("is_p2p")),
            "op_id": entry.get("op_id"),
            "op": op_of(name),
            "name": name,
            "peer": _peer(name),
            "bytes_in": _bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
            "bytes_out": _bytes_out(entry, name, len(ranks or ())),
            "dtype": _dtype(entry.get("input_dtypes")) or _dtype(entry.get("output_dtypes")),
            "created_ns": entry.get("time_created_ns"),
            "record": entry.get("record_id"),
            "source": "flight_recorder",
        }


def op_of(name: str) -> str:
    """Operation of a recorded name such as ``gloo:all_reduce`` or ``nccl:_reduce_scatter_base``; other where unknown."""
    plain = name.partition(":")[2] or name
    for part, op in _OPS:
        if part in plain:
            return op
    return "other"


def _peer(name: str) -> int | None:
    """``nccl:send 0->1`` and ``nccl:recv 1<-0`` name the ranks in the group: ours, then the other."""
    found = re.search(r"(?:send|recv) \d+(?:->|<-)(\d+)", name)
    return int(found.group(1)) if found else None


def _ranks(text: Any) -> list[int] | None:
    if isinstance(text, list):
        return [int(x) for x in text]
    numbers = re.findall(r"\d+", text or "")
    return [int(x) for x in numbers] if numbers else None


def _dtype(dtypes: Any) -> str | None:
    first = dtypes[0] if dtypes else None
    return DTYPES.get(first, (first, 0))[0] if isinstance(first, str) else None


def _bytes_out(entry: dict[str, Any], name: str, members: int) -> int | None:
    """What a rank gets. Of torch's functional all-gather gloo names one rank's part as all of it."""
    found = _bytes(entry.get("output_sizes"), entry.get("output_dtypes"))
    short = name == "gloo:all_gather" and members > 1 and found == _bytes(entry.get("input_sizes"), entry.get("input_dtypes"))
    return found * members if short and found is not None else found


def _bytes(sizes: Any, dtypes: Any) -> int | None:
    if not sizes or not dtypes:
        return None
    widths: list[int] = [DTYPES.get(d, ("", 0))[1] for d in dtypes]
    if 0 in widths:
        return None
    if len(widths) != len(sizes):
        widths = [widths[0]] * len(sizes)
    return sum(int(prod(shape)) * width for shape, width in zip(sizes, widths, strict=True))

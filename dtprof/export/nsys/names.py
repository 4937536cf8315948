"""Names as Nsight Systems has them: short kernel names, NCCL's functions, copy and sync types."""

from __future__ import annotations

import re

# operation -> function of NCCL whose NVTX range it is
NCCL_FUNCTIONS = {
    "all_reduce": "ncclAllReduce", "all_gather": "ncclAllGather", "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll", "broadcast": "ncclBroadcast", "reduce": "ncclReduce", "gather": "ncclGather",
    "scatter": "ncclScatter", "send": "ncclSend", "recv": "ncclRecv", "send_recv": "ncclGroupEnd", "barrier": "ncclAllReduce",
}  # fmt: skip
COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}|<unnamed>|\(anonymous class\)")
_SYNC = ((re.compile(r"wait", re.I), 2), (re.compile(r"event", re.I), 1), (re.compile(r"stream", re.I), 3),
         (re.compile(r"context|device", re.I), 4))  # fmt: skip
_MEMORY = re.compile(r"\(([A-Za-z ]+?)(?: -> ([A-Za-z ]+?))?\)")


def short_name(name: str, communication: bool = False) -> str:
    """The base name of a kernel: no return type, namespace, template or function arguments.

    Recipes know communication by a short name that begins with ``nccl``: one that does not gets ``nccl_`` in front.
    """
    text = _ANONYMOUS.sub("anonymous", name)
    cut = min((i for i in (text.find("<"), text.find("(")) if i > 0), default=len(text))
    base = text[:cut].rsplit("::", 1)[-1].strip().rsplit(" ", 1)[-1] or name
    return f"nccl_{base}" if communication and not base.startswith("nccl") else base


def sync_type(name: str) -> int:
    """Id in ENUM_CUPTI_SYNC_TYPE of a synchronisation's name; 0 is unknown."""
    return next((code for pattern, code in _SYNC if pattern.search(name)), 0)


def memory_kinds(name: str, kinds: tuple[str, ...]) -> tuple[int, int]:
    """Source and destination kind from ``Memcpy HtoD (Pageable -> Device)`` or ``Memset (Device)``; unknown is the last."""
    found = _MEMORY.search(name)
    unknown = len(kinds) - 1
    words = (found.group(1), found.group(2) or found.group(1)) if found else ("", "")
    source, destination = (kinds.index(w) if w in kinds else unknown for w in words)
    return source, destination


def event_class(call: str) -> int:
    """Id in ENUM_NSYS_EVENT_CLASS: 1 for calls of the driver's interface, as cuLaunchKernel."""
    return int(bool(re.match(r"cu[A-Z]", call)))

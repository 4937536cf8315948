"""RawTrace: what a Kineto file says, as columns, before anything is concluded from it.

Both scanners (C and Python) produce exactly this, under the same tests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dtprof.table import Strings

Ints: TypeAlias = NDArray[np.int64]

# args that are kept, by how their value is read. Keys of an event that are not listed are skipped.
INT_ARGS = (
    "device", "context", "stream", "bytes", "Sequence number", "Fwd thread id", "In msg nelems", "Out msg nelems",
    "Group size", "Rank", "Src Rank", "Dst Rank", "Seq", "registers per thread", "shared memory", "graph id",
    "graph node id", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id",
    "Global rank start", "Global rank stride",
)  # fmt: skip
FLOAT_ARGS = ("est. achieved occupancy %", "warps per SM")
TEXT_ARGS = (
    "Collective name", "dtype", "Process Group Name", "Process Group Description", "Process Group Ranks",
    "In split size", "Out split size", "cuda_sync_kind", "kind", "grid", "block",
)  # fmt: skip
# kept only on events that may be communication records (see comm_like): elsewhere they are many and never read
COMM_TEXT_ARGS = ("Input Dims", "Input type", "Concrete Inputs")
# what the name of a communication record contains, in lower case
COMM_WORDS = (
    "record_param_comms", "c10d", "nccl", "rccl", "gloo", "mpi:", "ucc:", "xccl", "hccl", "oneccl", "symm_mem",
    "deep_ep", "deepep",
    "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "reducescatter", "all_to_all", "alltoall",
    "broadcast", "barrier", "send", "recv", "coalesced",
)  # fmt: skip
# kept on [memory] instants
MEMORY_ARGS = ("Device Type", "Device Id", "Addr", "Bytes", "Total Allocated", "Total Reserved")


def comm_like(name: str) -> bool:
    """Whether an event of this name may be a communication record."""
    lowered = name.lower()
    return any(word in lowered for word in COMM_WORDS)


@dataclass(frozen=True)
class Sparse:
    """One argument: ``values[i]`` belongs to span (or instant) ``rows[i]``; rows ascend and are unique (last one wins)."""

    rows: NDArray[np.int32]
    values: Any  # Ints, NDArray[float64] or Strings


@dataclass(frozen=True)
class Damage:
    """One kind of damage: what, where it was first seen (byte offset in the JSON text), how often."""

    what: str
    offset: int
    count: int = 1


@dataclass
class RawTrace:
    """The columns of one file, in file order.

    Microseconds with more than three decimals are rounded half away from zero. Values of text arguments that are not
    strings (lists such as ``grid``) are JSON without white space. ``args`` and ``memory_args`` hold only arguments that
    occur; a value that is null, or that is no number where one is read, does not occur.

    Spans are complete events (``ph`` X, and B/E pairs joined). Times are int64 ns as written in the file
    (``baseTimeNanoseconds`` not yet added). ``track`` indexes ``tracks``: (pid, tid) pairs as text.
    ``correlation`` and ``external`` are MISSING where absent.
    """

    ts: Ints
    dur: Ints
    name: Strings
    cat: Strings
    track: NDArray[np.int32]
    correlation: Ints
    external: Ints
    tracks: list[tuple[str, str]]
    args: dict[str, Sparse]
    # flow points: phase 0 start, 1 step, 2 finish
    flow_phase: NDArray[np.int8]
    flow_id: Ints
    flow_ts: Ints
    flow_track: NDArray[np.int32]
    flow_cat: Strings
    # instants named [memory]
    memory_ts: Ints
    memory_args: dict[str, Sparse]
    # metadata events: (name, pid, tid, value)
    metadata: list[tuple[str, str, str, str]]
    # top-level keys other than traceEvents
    header: dict[str, Any]
    events_total: int
    damage: list[Damage] = field(default_factory=list)

"""The one vocabulary: tables, columns, kinds, units.

Times are int64 nanoseconds on the Unix clock; a duration is int64 nanoseconds. Never float, never rounded.
A value that is not known is *missing* (``MISSING``, ``MISSING32``, NaN, code -1 or None by kind), never 0.
A column that a source does not know at all need not be stored: it then reads as missing in every row.
Tables of scope ``part`` exist once per process; a column that names an event (``event``, ``src``, ``parent``, …)
holds the row of that event in the same part's ``events``. Tables of scope ``run`` exist once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1
MISSING = -(2**63)
MISSING32 = -(2**31)

ColumnKind = Literal["i64", "i32", "f64", "bool", "str", "enum", "ints", "strs"]


@dataclass(frozen=True)
class Column:
    """One column: ``unit`` is ns, bytes, … or empty; ``values`` are the names of an enum."""

    name: str
    kind: ColumnKind
    doc: str
    unit: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSpec:
    """One table of the schema."""

    name: str
    scope: Literal["part", "run"]
    doc: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column of that name; KeyError names the table."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"table {self.name} has no column {name!r}")


EVENT_KINDS = ("kernel", "memcpy", "memset", "comm", "cpu_op", "runtime", "range", "sync", "python", "overhead", "other")
DEVICE_KINDS = ("kernel", "memcpy", "memset", "comm")
ROLES = ("compute", "communication", "copy", "training", "autograd", "gloo", "loader", "other")
DEP_KINDS = ("launch", "stream_wait", "event_record", "sync", "flow", "forward_backward")
STEP_KINDS = ("train", "eval", "checkpoint", "warm-up", "lost", "restart")
PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "evaluation", "other")
OPS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv", "send_recv", "barrier", "other", "unknown",
)  # fmt: skip
COMM_STATES = ("scheduled", "started", "completed")
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})
MEMORY_CATEGORIES = (
    "parameter", "gradient", "optimizer", "activation", "temporary", "communication", "input", "allocated", "reserved",
)  # fmt: skip


def _c(name: str, kind: ColumnKind, doc: str, unit: str = "", values: tuple[str, ...] = ()) -> Column:
    return Column(name, kind, doc, unit, values)


TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        TableSpec("lanes", "part", "one stream or thread", (
            _c("id", "i32", "number of the lane in its part"),
            _c("process", "i64", "process id as the source gives it"),
            _c("device", "i32", "device ordinal; -1 is the host"),
            _c("context", "i64", "device context"),
            _c("stream", "i64", "device stream; missing on host lanes"),
            _c("thread", "i64", "thread id; missing on device lanes"),
            _c("name", "str", "name that the source gives"),
            _c("role", "enum", "what runs there", values=ROLES),
        )),
        TableSpec("events", "part", "one span on one lane, ascending by ts", (
            _c("ts", "i64", "start", "ns"),
            _c("dur", "i64", "duration", "ns"),
            _c("kind", "enum", "what it is; a comm row is a communication kernel or a CPU backend's span", values=EVENT_KINDS),
            _c("name", "str", "name as recorded"),
            _c("lane", "i32", "lane id"),
            _c("correlation", "i64", "joins a launch call and its device operations (1:n)"),
            _c("op_id", "i64", "id of the enclosing operator as the source gives it (Kineto: External id)"),
            _c("parent", "i32", "innermost enclosing event of the same lane; missing at top level"),
            _c("launch", "i32", "the runtime call that launched a device operation; missing if not in the file"),
            _c("bytes", "i64", "bytes of a copy or memset", "bytes"),
            _c("copy_kind", "str", "direction of a copy: HtoD, DtoH, DtoD, PtoP"),
            _c("graph_node", "i64", "node id in a CUDA graph"),
            _c("step", "i32", "host step in which the work was launched"),
            _c("phase", "enum", "phase of the step", values=PHASES),
            _c("microbatch", "i32", "micro-batch"),
            _c("stage", "i32", "pipeline stage"),
            _c("layer", "str", "layer or module path"),
            _c("bucket", "i32", "DDP bucket"),
            _c("expert", "i32", "MoE expert"),
        )),
        TableSpec("kernel_args", "part", "one kernel's launch parameters", (
            _c("event", "i32", "the kernel"),
            _c("grid", "str", "grid, as x,y,z", "blocks"),
            _c("block", "str", "block, as x,y,z", "threads"),
            _c("registers", "i32", "registers per thread"),
            _c("shared_memory", "i64", "shared memory per block", "bytes"),
            _c("occupancy", "f64", "estimated achieved occupancy, 0 to 1"),
            _c("warps_per_sm", "f64", "warps launched, by the multiprocessors of the device", "warps"),
        )),
        TableSpec("deps", "part", "one dependency between two events of the part", (
            _c("src", "i32", "the event that must come first"),
            _c("dst", "i32", "the event that depends on it"),
            _c("kind", "enum", "why", values=DEP_KINDS),
            _c("src_lane", "i32", "stream wait: the lane whose work was recorded; missing where the source does not say"),
        )),
        TableSpec("groups", "part", "one process group as this process knows it", (
            _c("id", "i32", "number in this part"),
            _c("name", "str", "the process's own name for it; may differ between ranks"),
            _c("description", "str", "what the job calls it"),
            _c("ranks", "ints", "members, ascending; None where unknown or cut off"),
            _c("size", "i32", "number of members; missing where unknown"),
            _c("axis", "str", "mesh axis: dp, tp, pp, ep, cp, …"),
            _c("backend", "str", "nccl, gloo, …"),
        )),
        TableSpec("comm", "part", "one rank's part in one communication operation", (
            _c("event", "i32", "the device kernel or the backend's span"),
            _c("record", "i32", "the host event that names the operation; missing if none"),
            _c("op", "enum", "operation, from the enclosing record before the kernel's name", values=OPS),
            _c("group", "i32", "group id; missing where unknown"),
            _c("seq", "i64", "sequence number in the group"),
            _c("batch", "i32", "same number: members of one coalesced or batched launch (many rows, one event)"),
            _c("bytes_in", "i64", "bytes that this rank put in", "bytes"),
            _c("bytes_out", "i64", "bytes that this rank got out", "bytes"),
            _c("bytes_wire", "i64", "all-to-all: bytes to other ranks; missing where the split is not known", "bytes"),
            _c("bytes_known", "enum", "how far the bytes may be trusted", values=("exact", "upper_bound", "unknown")),
            _c("dtype", "str", "element type"),
            _c("peer", "i32", "other rank of a send or receive"),
            _c("known_by", "enum", "where op and group come from", values=("args", "record", "collector", "name")),
            _c("state", "enum", "how far it had got when recorded; missing where the source does not say", values=COMM_STATES),
        )),
        TableSpec("collectives", "run", "one operation over its ranks", (
            _c("id", "i32", "number in the run, by first start"),
            _c("op", "enum", "operation", values=OPS),
            _c("group", "str", "members, as 0,1,2, or the name where members are not known"),
            _c("seq", "i64", "sequence number or order in the group"),
            _c("bytes", "i64", "size by nccl-tests' convention: the larger side", "bytes"),
            _c("n", "i32", "size of the group; missing where unknown"),
            _c("n_present", "i32", "ranks whose part is in the run"),
            _c("first_start", "i64", "first start over the ranks, clocks aligned", "ns"),
            _c("last_start", "i64", "last start over the ranks, clocks aligned", "ns"),
            _c("end", "i64", "last end over the ranks, clocks aligned", "ns"),
            _c("transfer", "i64", "shortest participation; missing unless all ranks are present and end together", "ns"),
            _c("transfer_upper", "i64", "shortest participation of the ranks present: an upper bound", "ns"),
            _c("algbw", "f64", "bytes / transfer", "GB/s"),
            _c("busbw", "f64", "algbw x the operation's factor", "GB/s"),
            _c("matched_by", "enum", "how the rows were joined", values=("seq", "order", "single")),
            _c("one_sided", "bool", "a point-to-point or late-root operation: no wait can be told"),
            _c("last_rank", "i32", "rank that arrives last; missing where it cannot be told"),
            _c("start_skew", "i64", "last minus first start", "ns"),
            _c("end_skew", "i64", "last minus first end", "ns"),
            _c("step", "i32", "step in which it was launched; missing where ranks disagree"),
        )),
        TableSpec("participations", "run", "one rank's time in one matched operation", (
            _c("collective", "i32", "id in collectives"),
            _c("part", "i32", "part ordinal"),
            _c("rank", "i32", "rank"),
            _c("event", "i32", "row in that part's events"),
            _c("row", "i32", "row in that part's comm"),
            _c("start", "i64", "start, clocks aligned", "ns"),
            _c("dur", "i64", "duration", "ns"),
            _c("wait", "i64", "duration minus transfer; missing where transfer is", "ns"),
        )),
        TableSpec("buckets", "part", "one DDP bucket in one step", (
            _c("step", "i32", "step"),
            _c("bucket", "i32", "index in the order of the reduction"),
            _c("members", "strs", "parameter names in the bucket; None where unknown"),
            _c("bytes", "i64", "size", "bytes"),
            _c("ready", "i64", "last member's gradient ready", "ns"),
            _c("start", "i64", "communication starts", "ns"),
            _c("end", "i64", "communication ends", "ns"),
        )),
        TableSpec("grads", "part", "one gradient in one step", (
            _c("step", "i32", "step"),
            _c("parameter", "str", "parameter name"),
            _c("bytes", "i64", "size", "bytes"),
            _c("ready", "i64", "gradient accumulated", "ns"),
            _c("rows", "i64", "first dimension of the parameter; missing where not recorded"),
            _c("columns", "i64", "elements per row"),
        )),
        TableSpec("steps", "part", "one step of one process", (
            _c("step", "i32", "step number"),
            _c("host_ts", "i64", "host start", "ns"),
            _c("host_dur", "i64", "host duration", "ns"),
            _c("device_ts", "i64", "device start; missing on CPU jobs", "ns"),
            _c("device_dur", "i64", "device duration", "ns"),
            _c("complete", "bool", "both borders lie in the capture"),
            _c("kind", "enum", "what the step did; lost, restart: what a restart cost, found at reading", values=STEP_KINDS),
            _c("marked", "enum", "how the step is known", values=("marked", "inferred")),
            _c("captured", "bool", "the tracer was on during the whole step"),
            _c("tokens", "i64", "tokens of this rank", "tokens"),
            _c("samples", "i64", "samples of this rank", "samples"),
            _c("loss", "f64", "loss as reported"),
        )),
        TableSpec("samples", "part", "one counter reading in time", (
            _c("ts", "i64", "instant", "ns"),
            _c("metric", "str", "what: gc_pause, sm_clock, …"),
            _c("value", "f64", "reading"),
            _c("unit", "str", "unit of the value"),
            _c("device", "i32", "device; -1 is the host"),
        )),
        TableSpec("metrics", "part", "one number of a step", (
            _c("step", "i32", "step"),
            _c("metric", "str", "what: moe_tokens, loss_scale, staleness, …"),
            _c("value", "f64", "value"),
            _c("unit", "str", "unit"),
            _c("layer", "str", "layer"),
            _c("expert", "i32", "expert"),
            _c("bucket", "i32", "bucket"),
        )),
        TableSpec("memory", "part", "state or peak of memory by category", (
            _c("ts", "i64", "instant", "ns"),
            _c("device", "i32", "device; -1 is the host"),
            _c("category", "enum", "what the bytes are", values=MEMORY_CATEGORIES),
            _c("bytes", "i64", "bytes", "bytes"),
            _c("phase", "enum", "phase", values=PHASES),
            _c("module", "str", "module"),
            _c("stack", "str", "stack, innermost first"),
        )),
        TableSpec("allocations", "part", "one allocator event", (
            _c("ts", "i64", "instant", "ns"),
            _c("device", "i32", "device; -1 is the host"),
            _c("address", "i64", "address"),
            _c("size", "i64", "bytes; negative is a free", "bytes"),
            _c("segment", "i64", "segment"),
            _c("stack", "str", "stack, innermost first"),
        )),
        TableSpec("quality", "part", "one thing wrong or missing", (
            _c("source", "str", "file, table or collector"),
            _c("what", "str", "what is wrong or missing, in words"),
            _c("count", "i64", "how many times"),
            _c("effect", "str", "what it changes for the reader"),
        )),
    )
}  # fmt: skip

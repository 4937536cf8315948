"""The lines of ddp.jsonl and collectives.jsonl. Times are Unix ns, durations ns, sizes bytes; None is unknown."""

from __future__ import annotations

import msgspec


class Config(msgspec.Struct, kw_only=True, tag_field="type", tag="config"):
    """One DistributedDataParallel as it was made.

    ``bucket_cap_mb`` is None where the argument was absent (then the first bucket is 1 MiB); ``comm_hook`` is the name of
    the job's own hook; ``parameters`` are (name, bytes, dtype) in registration order, ``matrices`` their (rows, columns) as
    PowerSGD sees them: the first dimension and the rest.
    """

    model: int
    module: str
    bucket_cap_mb: float | None
    bucket_cap_bytes: int | None
    find_unused_parameters: bool
    static_graph: bool
    gradient_as_bucket_view: bool
    broadcast_buffers: bool
    comm_hook: str | None
    ranks: list[int]
    backend: str
    parameters: list[tuple[str, int, str]]
    matrices: list[tuple[int, int]] = []


class Bucket(msgspec.Struct, kw_only=True):
    """One bucket; ``members`` are parameter names, None before the buckets are rebuilt."""

    bucket: int
    bytes: int
    members: list[str] | None


class Layout(msgspec.Struct, kw_only=True, tag_field="type", tag="layout"):
    """Buckets in the order of reduction, read at the end of ``step``; rebuilt once, in gradient-ready order."""

    model: int
    step: int
    rebuilt: bool
    buckets: list[Bucket]


class Grads(msgspec.Struct, kw_only=True, tag_field="type", tag="grads"):
    """Gradients of one step: ``ready`` are (parameter index, time), in time order, one per backward pass.

    ``unused`` are parameters that had none; ``join``: inside Join; ``sync``: gradients are reduced (not no_sync).
    """

    model: int
    step: int
    ready: list[tuple[int, int]]
    unused: list[int]
    join: bool
    sync: bool


class Ready(msgspec.Struct, kw_only=True, tag_field="type", tag="ready"):
    """What is kept of most steps: when the first gradient was ready, and the last of each bucket of the newest layout."""

    model: int
    step: int
    first: int | None
    buckets: list[int | None]
    join: bool
    sync: bool


class Timing(msgspec.Struct, kw_only=True, tag_field="type", tag="timing"):
    """DDP's own times of its last iteration. CPU jobs only: on a device, reading them would wait for it."""

    model: int
    step: int
    forward_compute_time: int | None = None
    backward_compute_time: int | None = None
    backward_comm_time: int | None = None
    backward_compute_comm_overlap_time: int | None = None
    forward_compute_time_start: int | None = None
    backward_compute_time_start: int | None = None
    backward_compute_time_end: int | None = None
    backward_comm_time_start: int | None = None
    backward_comm_time_end: int | None = None


Line = Config | Layout | Grads | Ready | Timing


class Operation(msgspec.Struct, kw_only=True):
    """One communication operation that this rank issued.

    ``order`` counts from 0; ``group`` and ``description`` are the process's names for the group; ``seq`` its sequence number
    in the group; ``op`` one of dtprof.schema.OPS, from ``name``; ``peer`` a rank of the group; ``created_ns`` lies inside
    the operator that issued it; ``step`` is None outside the captured steps; ``source`` is flight_recorder or ddp_layout.
    """

    order: int
    step: int | None
    group: str
    description: str
    ranks: list[int] | None
    seq: int | None
    p2p: bool
    op_id: int | None
    op: str
    name: str
    peer: int | None
    bytes_in: int | None
    bytes_out: int | None
    dtype: str | None
    created_ns: int | None
    record: int | None
    source: str

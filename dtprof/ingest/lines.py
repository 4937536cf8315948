"""The lines of our own recordings that ingest itself reads; a line whose fields are of another kind counts as torn."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dtprof.jsonl import Int32 as Int32
from dtprof.jsonl import Int64 as Int64


class StepLine(Struct, kw_only=True):
    """One step of steps.jsonl: Unix ns and ns; what the job did not give is None."""

    step: Int32
    host_ts: Int64
    host_dur: Annotated[int, Meta(ge=0, lt=2**62)]
    captured: bool = False
    kind: str | None = None
    tokens: Int64 | None = None
    samples: Int64 | None = None
    loss: float | None = None
    own_ns: Int64 | None = None
    input_ns: Int64 | None = None
    phases: dict[str, Int64] = {}


class Metric(Struct, array_like=True):
    """One number that the job recorded, as metrics.jsonl has it; ``value`` is None where it was not finite."""

    name: str
    value: float | None = None
    unit: str = ""
    layer: str | None = None
    expert: Int32 | None = None
    bucket: Int32 | None = None


class MetricsLine(Struct, kw_only=True):
    """The numbers of one step, of metrics.jsonl."""

    step: Int32
    metrics: list[Metric]


class IssuedLine(Struct, kw_only=True):
    """One operation of collectives.jsonl as the job issued it; ``created_ns`` is Unix ns, sizes are bytes."""

    group: str | None = None
    description: str | None = None
    ranks: list[Int32] | None = None
    seq: Int64 | None = None
    op: str | None = None
    peer: Int32 | None = None
    bytes_in: Int64 | None = None
    bytes_out: Int64 | None = None
    dtype: str | None = None
    created_ns: Int64 | None = None

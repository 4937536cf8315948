"""The lines of memory.jsonl. Times are Unix ns, sizes bytes; None is unknown."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="counters"):
    """One step, read between it and the next, where a step holds least.

    ``rss`` is what the process has in memory now, ``rss_peak`` the most it ever had; the rest is the CUDA caching
    allocator's, of ``device``: now, and ``allocated_peak`` since the job last reset it (dtprof never does). ``retries`` and
    ``ooms`` count since the process began.
    """

    step: int
    ts: int
    rss: int | None = None
    rss_peak: int | None = None
    device: int | None = None
    allocated: int | None = None
    allocated_peak: int | None = None
    reserved: int | None = None
    active: int | None = None
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None


class State(msgspec.Struct, kw_only=True, tag_field="type", tag="state"):
    """What the training state takes on this rank, at the end of ``step``.

    ``rows`` are (category, module, device, bytes); device -1 is the host, module None where the owner is not known.
    """

    step: int
    ts: int
    rows: list[tuple[str, str | None, int, int]]


class Grown(msgspec.Struct, kw_only=True, tag_field="type", tag="grown"):
    """What the forward passes of one step left allocated, by the module that allocated it (CUDA): (module, device, bytes)."""

    step: int
    ts: int
    rows: list[tuple[str, int, int]]


Line = Counters | State | Grown

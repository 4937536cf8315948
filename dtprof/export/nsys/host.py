"""CUDA calls and NVTX ranges of a part as nsys tables.

Spans of the host are push/pop ranges on their own thread, in one domain per kind: ``dtprof`` (annotated ranges and steps),
``torch`` (operators), ``communication`` (spans of a CPU backend), ``python``, ``other``. Two more domains hold what
reports need and dtprof's tables do not count:

NCCL           one range per communication operation on the thread that launched it, named after NCCL's function
dtprof.launch  start/end copies of annotated ranges on every *other* thread that launched device work inside them

nsys gives a range the device work that its own thread launched. Work of the backward pass is launched by the autograd
thread: the copy owns it. Copies have a domain and a style of their own, so that sums over ``dtprof`` stay what they are.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from dtprof.export.common import aligned, unmarked_steps
from dtprof.export.nsys import names
from dtprof.export.nsys.schema import CATEGORY, DOMAIN, PUSH_POP, START_END
from dtprof.export.nsys.sheet import Sheet, Values
from dtprof.export.nsys.source import Source, pieces
from dtprof.intervals import Ints
from dtprof.ranges import parse_range
from dtprof.schema import EVENT_KINDS, MISSING, MISSING32, PHASES
from dtprof.table import Table

# domain -> its number; 0 is NVTX's default domain
DOMAINS = {"dtprof": 1, "torch": 2, "communication": 3, "python": 4, "other": 5, "NCCL": 6, "dtprof.launch": 7}
_DOMAIN_OF = {"range": "dtprof", "cpu_op": "torch", "comm": "communication", "python": "python"}
_PAYLOADS = ("step", "microbatch", "bucket")


def calls(source: Source) -> Iterator[Sheet]:
    """CUDA calls, in pieces."""
    for rows in pieces(source.calls):
        yield _calls(source, rows)


def _calls(source: Source, rows: Ints) -> Sheet:
    events = source.events
    classes = np.array([names.event_class(v) for v in events.values("name")] + [0], np.int64)
    return Sheet("CUPTI_ACTIVITY_KIND_RUNTIME", len(rows), {
        "start": source.start[rows],
        "end": source.end[rows],
        "eventClass": classes[events["name"][rows]],
        "globalTid": source.global_tid[rows],
        "correlationId": source.correlation[rows],
        "nameId": source.strings.of_codes(events, "name", rows),
        "returnValue": 0,
    })  # fmt: skip


def nvtx(source: Source) -> Iterator[Sheet]:
    """All NVTX rows: domains, categories, spans, steps without a span, NCCL's ranges, copies for launching threads."""
    yield _declarations(source)
    for rows in pieces(span_rows(source)):
        yield _spans(source, rows)
    yield _unmarked_steps(source)
    yield _nccl(source)
    yield _copies(source)


def span_rows(source: Source) -> Ints:
    """Events that become push/pop ranges: everything on host threads but CUDA calls."""
    host = (source.device < 0) & (source.global_tid >= 0)
    return np.flatnonzero(host & ~source.events.is_("kind", "runtime", "kernel", "memcpy", "memset"))


def _declarations(source: Source) -> Sheet:
    """Domains and their phases as categories."""
    thread = source.main_thread
    domains = [(0, None, DOMAIN, None, None, None, name, thread, None, None, number) for name, number in DOMAINS.items()]
    phases = [
        (0, None, CATEGORY, None, number, None, phase, thread, None, None, DOMAINS[domain])
        for number, phase in enumerate(PHASES, 1)
        for domain in ("dtprof", "dtprof.launch")
    ]
    return Sheet.of("NVTX_EVENTS", [*domains, *phases])


def _spans(source: Source, rows: Ints) -> Sheet:
    events = source.events
    domain = np.array([DOMAINS[_DOMAIN_OF.get(kind, "other")] for kind in EVENT_KINDS], np.int64)[events["kind"][rows]]
    category, payload = _tags(events)
    ours = domain == DOMAINS["dtprof"]
    code = events["name"][rows]
    return Sheet("NVTX_EVENTS", len(rows), {
        "start": source.start[rows],
        "end": source.end[rows],
        "eventType": PUSH_POP,
        "globalTid": source.global_tid[rows],
        "textId": source.strings.of_codes(events, "name", rows),
        "domainId": domain,
        "category": np.where(ours, category[code], MISSING),
        "int64Value": np.where(ours, payload[code], MISSING),
    })  # fmt: skip


def _tags(events: Table) -> tuple[Ints, Ints]:
    """Category and payload of every name: the phase that it is tagged with, and its step, micro-batch or bucket."""
    category, payload = [], []
    for name in events.values("name"):
        tags = parse_range(name)[1]
        category.append(PHASES.index(str(tags["phase"])) + 1 if tags.get("phase") in PHASES else MISSING)
        step = name.removeprefix("ProfilerStep#")
        number = int(step) if step != name and step.isdecimal() and len(step) < 18 else None
        payload.append(next((int(tags[k]) for k in _PAYLOADS if k in tags), MISSING if number is None else number))
    return np.array([*category, MISSING], np.int64), np.array([*payload, MISSING], np.int64)


def _unmarked_steps(source: Source) -> Sheet:
    number, start, dur = unmarked_steps(source.run, source.part)
    start = aligned(source.part, start, source.zero)
    return Sheet("NVTX_EVENTS", len(number), {
        "start": start,
        "end": start + dur,
        "eventType": PUSH_POP,
        "globalTid": source.main_thread,
        "textId": np.array([source.strings.of(f"ProfilerStep#{n}") for n in number.tolist()], np.int64),
        "domainId": DOMAINS["dtprof"],
        "int64Value": number,
    })  # fmt: skip


def nccl_rows(source: Source) -> tuple[Ints, Ints, Ints]:
    """Rows of ``comm`` that were launched on a device from the host, their launch calls, and how many came before.

    The last counts operations of the same launch call, for batches: 0, 1, …
    """
    comm = source.run.table("comm", source.part.ordinal)
    launch = source.events["launch"][comm["event"]]
    rows = np.flatnonzero((launch != MISSING32) & (source.device[comm["event"]] >= 0))
    calls = launch[rows].astype(np.int64)
    order = np.argsort(calls, kind="stable")
    rows, calls = rows[order], calls[order]
    first = np.searchsorted(calls, calls)
    return rows, calls, np.arange(len(calls)) - first


def _nccl(source: Source) -> Sheet:
    """A range is 1 ns wider than its launch call on both sides, and 1 ns more for each operation before it.

    Of ranges that coincide on one thread nsys takes each for the parent of the other, and lists neither.
    """
    rows, calls, before = nccl_rows(source)
    comm = source.run.table("comm", source.part.ordinal)
    groups = source.run.table("groups", source.part.ordinal)
    group_rows = {int(g): i for i, g in enumerate(groups["id"].tolist())}
    ops = comm.take(rows).text("op")
    return Sheet("NVTX_EVENTS", len(rows), {
        "start": source.start[calls] - 1 - before,
        "end": source.end[calls] + 1 + before,
        "eventType": PUSH_POP,
        "globalTid": source.global_tid[calls],
        "textId": np.array([source.strings.of(names.NCCL_FUNCTIONS.get(op or "", "nccl")) for op in ops], np.int64),
        "domainId": DOMAINS["NCCL"],
        "jsonText": [_payload(source.part.rank, comm.row(r), groups, group_rows) for r in rows.tolist()],
    })  # fmt: skip


def _payload(rank: int | None, row: dict[str, Any], groups: Table, group_rows: dict[int, int]) -> str:
    """What NCCL's ranges carry, under NCCL's own names; operation, sequence number and members beside them."""
    at = group_rows.get(row["group"] if row["group"] is not None else -1)
    group = groups.row(at) if at is not None else {}
    members = group.get("ranks")
    sizes = [s for s in (row["bytes_in"], row["bytes_out"]) if s is not None]
    # NCCL counts what one rank contributes or keeps: the smaller side of a gather or reduce-scatter
    size = None if not sizes else min(sizes) if row["op"] in ("all_gather", "reduce_scatter") else max(sizes)
    key = ",".join(map(str, members)) if members else group.get("name")
    payload = {
        "NCCL communicator ID": None if key is None else zlib.crc32(str(key).encode()),
        "No. of ranks": group.get("size"),
        "Rank": rank,
        "Message size [bytes]": size,
        "Peer rank": row["peer"],
        "Operation": row["op"],
        "Sequence": row["seq"],
        "Ranks": members if members is None else list(members),
        "Group": group.get("name"),
        "Data type": row["dtype"],
    }
    return json.dumps({k: v for k, v in payload.items() if v is not None})


def launch_copies(source: Source) -> tuple[Ints, Ints]:
    """Rows of annotated ranges on training threads, and the other threads that launched device work inside them.

    Pairs (event row, global thread id), by thread and row.
    """
    events = source.events
    training = source.lanes["id"][source.lanes.is_("role", "training")]
    ranges = np.flatnonzero(events.is_("kind", "range") & (source.device < 0) & np.isin(events["lane"], training))
    launch = events["launch"][source.device_rows]
    causes = np.unique(launch[launch != MISSING32])
    rows, threads = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for thread in np.unique(source.global_tid[causes]).tolist():
        mine = causes[source.global_tid[causes] == thread]
        others = ranges[source.global_tid[ranges] != thread]
        # calls of one thread end in the order in which they start, or are nested: the first that starts inside decides
        nearest = np.minimum.accumulate(source.end[mine][::-1])[::-1]
        at = np.searchsorted(source.start[mine], source.start[others])
        inside = np.append(nearest, np.iinfo(np.int64).max)[at] <= source.end[others]
        rows.append(others[inside])
        threads.append(np.full(int(inside.sum()), thread, np.int64))
    return np.concatenate(rows), np.concatenate(threads)


def _copies(source: Source) -> Sheet:
    rows, threads = launch_copies(source)
    category, payload = _tags(source.events)
    code = source.events["name"][rows]
    columns: dict[str, Values] = {
        "start": source.start[rows],
        "end": source.end[rows],
        "eventType": START_END,
        "rangeId": np.arange(1, len(rows) + 1, dtype=np.int64),
        "globalTid": threads,
        "textId": source.strings.of_codes(source.events, "name", rows),
        "domainId": DOMAINS["dtprof.launch"],
        "category": category[code],
        "int64Value": payload[code],
    }
    return Sheet("NVTX_EVENTS", len(rows), columns)

"""From what a scanner collected to a RawTrace: unfinished spans and a second writer left out, damage named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto.collected import Collected, Notes, Rows, Texts
from dtprof.ingest.kineto.raw import MEMORY_ARGS, Ints, RawTrace, Sparse
from dtprof.ingest.kineto.texts import decode
from dtprof.schema import MISSING
from dtprof.table import Strings

HOST_CATS = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")


def assemble(c: Collected, notes: Notes) -> RawTrace:
    """The trace; ``notes`` may already hold damage of the file around the JSON."""
    for flaw, offset, count in c.flaws:
        notes.add(kinds.FLAWS[flaw], offset, count)
    tracks, track_map = _tracks(c.tracks, notes)
    spans, flows, memory, metadata = len(c.ts), len(c.flow_ts), len(c.memory_ts), len(c.metadata)
    second = _second_writer(c, tracks if track_map is None else [tracks[i] for i in track_map])
    if second is not None:
        notes.add(kinds.TWO_WRITERS, second[0])
        _, spans, flows, memory, metadata = second
    whole = c.dur[:spans] >= 0
    renumbered: Ints | None = None
    if c.pairs and not whole.all():
        notes.add(kinds.FLAWS[kinds.UNPAIRED], c.bytes, int(((c.dur[:spans] < 0) & (c.dur[:spans] != MISSING)).sum()))
        renumbered = np.where(whole, np.cumsum(whole) - 1, -1)

    def column(data: NDArray[Any]) -> Any:
        return data[:spans] if renumbered is None else data[:spans][whole]

    def arguments(count: int, of_memory: bool) -> dict[str, Sparse]:
        renumber, pairs = (None, False) if of_memory else (renumbered, c.pairs)
        picked = {k: v for k, v in c.args.items() if (k in MEMORY_ARGS) == of_memory}
        sparse = {k: _sparse(*v, count, renumber, pairs, notes) for k, v in picked.items()}
        return {k: v for k, v in sparse.items() if len(v.rows)}

    def track(codes: Rows) -> Rows:
        return codes if track_map is None else track_map[codes]

    return RawTrace(
        ts=column(c.ts),
        dur=column(c.dur),
        name=_strings(column(c.name[0]), c.name[1], notes),
        cat=_strings(column(c.cat[0]), c.cat[1], notes),
        track=track(column(c.track)),
        correlation=column(c.correlation),
        external=column(c.external),
        tracks=tracks,
        args=arguments(spans, False),
        flow_phase=c.flow_phase[:flows],
        flow_id=c.flow_id[:flows],
        flow_ts=c.flow_ts[:flows],
        flow_track=track(c.flow_track[:flows]),
        flow_cat=_strings(c.flow_cat[0][:flows], c.flow_cat[1], notes),
        memory_ts=c.memory_ts[:memory],
        memory_args=arguments(memory, True),
        metadata=c.metadata[:metadata],
        header=_header(c.header, notes),
        events_total=c.events_total,
        damage=notes.damage(),
    )


def _strings(codes: Rows, texts: Texts, notes: Notes) -> Strings:
    """Texts that became equal when decoded get one code."""
    index: dict[str, int] = {}
    lut = [index.setdefault(value, len(index)) for value in texts.values]
    for code, first in texts.repaired.items():
        notes.add(kinds.BAD_TEXT, first, int((codes == code).sum()))
    if len(index) < len(lut):
        codes = np.array([*lut, -1], np.int32)[codes]
    return Strings(codes, tuple(index))


def _tracks(texts: Texts, notes: Notes) -> tuple[list[tuple[str, str]], Rows | None]:
    index: dict[tuple[str, str], int] = {}
    lut: list[int] = []
    for joined in texts.values:
        pid, _, tid = joined.partition("\0")
        lut.append(index.setdefault((pid, tid), len(index)))
    for first in texts.repaired.values():
        notes.add(kinds.BAD_TEXT, first)
    return list(index), np.array(lut, np.int32) if len(index) < len(lut) else None


def _sparse(
    rows: Rows, values: Any, texts: Texts | None, count: int, renumbered: Ints | None, pairs: bool, notes: Notes
) -> Sparse:
    """Rows below ``count``, renumbered; where end events added values late, in order and the last one kept."""
    if pairs:
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
        last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        rows, values = rows[last], values[last]
    if len(rows) and rows[-1] >= count:
        stop = int(np.searchsorted(rows, count))
        rows, values = rows[:stop], values[:stop]
    if renumbered is not None:
        rows = renumbered[rows].astype(np.int32)
        rows, values = rows[rows >= 0], values[rows >= 0]
    return Sparse(rows, values if texts is None else _strings(values, texts, notes))


def _second_writer(c: Collected, tracks: Sequence[tuple[str, str]]) -> tuple[int, int, int, int, int] | None:
    """Where another process's events begin: offset, spans, flows, memory rows, metadata before it; or None.

    A trace has one host process. Where host events of another one begin, two processes wrote into one file, provided that
    the thread was lost there; or, where the seam happens to read as JSON, that the first process is not heard of again and
    the trace names the second and not the first, whose names would have come later.
    """
    is_host = np.array([cat in HOST_CATS for cat in c.cat[1].values] + [False])[c.cat[0]]
    on_host = np.zeros(len(tracks), bool)
    on_host[c.track[is_host]] = True
    if len({tracks[t][0] for t in np.flatnonzero(on_host).tolist()}) < 2:
        return None
    host = np.flatnonzero(is_host)
    pid_code = {pid: i for i, pid in enumerate(dict.fromkeys(pid for pid, _ in tracks))}
    pids = np.array([pid_code[pid] for pid, _ in tracks])[c.track[host]]
    others = np.flatnonzero(pids != pids[0])
    # a single event of another process is more likely a damaged pid
    if not len(others) or others[0] < 2 or (pids[others[0] : others[0] + 2] == pids[others[0]]).sum() < 2:
        return None
    last_row, next_row = int(host[others[0] - 1]), int(host[others[0]])
    between = c.breaks[(c.breaks[:, 1] > last_row) & (c.breaks[:, 1] <= next_row)]
    if len(between):
        offset, spans, flows, memory, metadata = between[0].tolist()
        return offset, spans, flows, memory, metadata
    if (pids[others[0] :] != pids[others[0]]).any():
        return None
    first, second = (list(pid_code)[pids[i]] for i in (0, others[0]))
    named = [pid for name, pid, _, _ in c.metadata if name == "process_name"]
    if first in named or second not in named:
        return None
    new = np.ones(len(tracks), bool)
    new[c.track[: last_row + 1]] = False
    new &= ~np.isin([pid for pid, _ in tracks], [tracks[t][0] for t in np.flatnonzero(~new).tolist()])
    spans, flows = last_row + 1 + _first(new[c.track[last_row + 1 :]]), _first(new[c.flow_track])
    return c.bytes, spans, flows, len(c.memory_ts), _first(np.array([pid == second for _, pid, _, _ in c.metadata], bool))


def _first(mask: NDArray[np.bool_]) -> int:
    """Index of the first true value, or the length."""
    return int(mask.argmax()) if mask.any() else len(mask)


def _header(members: Sequence[tuple[str, int, bytes]], notes: Notes) -> dict[str, Any]:
    header: dict[str, Any] = {}
    for key, offset, raw in members:
        try:
            header[key] = json.loads(raw, strict=False)
        except ValueError:
            header[key] = _repaired(raw)
            notes.add(kinds.FLAWS[kinds.HEADER], offset)
    return header


def _repaired(raw: bytes) -> Any:
    """A header value that only just is no JSON: bytes that are not UTF-8 replaced, or else its text."""
    text = decode(raw, True)[0]
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return text

"""Big Kineto traces made of a real one: its events repeated, each time later and with ids of their own."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from isal import igzip

# what changes from one copy to the next: times, flow ids, correlation and External id
_CHANGES = re.compile(rb'("ts"|"id"|"correlation"|"External id")(\s*:\s*)(-?\d+)(\.\d+)?')
_STEP = b'"ProfilerStep#'
_NUMBERED = re.compile(
    _CHANGES.pattern.replace(b'"External id"', b'"External id"|' + _STEP).replace(rb"(\s*:\s*)", rb"(\s*:\s*|)")
)
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


def tile(source: Path, target: Path, megabytes: float, period_us: int = 0) -> int:
    """Write copies of ``source``, gzipped, to ``target``: about ``megabytes`` (10^6 bytes) of JSON; returns the exact size.

    With ``period_us`` a copy begins so much after the one before, and its steps are numbered on: ranks stay together.
    """
    text = source.read_bytes()
    if text[:2] == b"\x1f\x8b":
        text = igzip.decompress(text)
    opened = _EVENTS.search(text)
    if not opened:
        raise SystemExit(f"{source}: no traceEvents; give a Kineto trace")
    start = opened.end()
    rest = text[start - 1 :].decode()
    _, length = json.JSONDecoder().raw_decode(rest)
    events = rest[1 : length - 1].encode()
    stop = start + len(events)
    copies = max(1, round((megabytes * 1e6 - (len(text) - len(events))) / len(events)))
    pieces, numbers, steps = _split(events, period_us)
    size = 0
    with gzip.open(target, "wb", compresslevel=6) as out:
        for copy in range(copies):
            block = (text[:start] if not copy else b",") + _shifted(pieces, numbers, steps, copy)
            size += out.write(block if copy < copies - 1 else block + text[stop:])
    return size


def span_us(source: Path) -> int:
    """From the first to the last start of an event."""
    times = [int(m[3]) for m in _CHANGES.finditer(igzip.decompress(source.read_bytes())) if m[1] == b'"ts"']
    return max(times) - min(times)


def _split(events: bytes, period_us: int) -> tuple[list[bytes], list[int], list[int]]:
    """The text between the numbers that change, the numbers, and by how much each changes per copy."""
    found = list((_NUMBERED if period_us else _CHANGES).finditer(events))
    times = [int(m[3]) for m in found if m[1] == b'"ts"']
    ids = [int(m[3]) for m in found if m[1] not in (b'"ts"', _STEP)]
    later, further = period_us or max(times) - min(times) + 1000, max(ids, default=0) + 1
    each = {b'"ts"': later, _STEP: 1}
    pieces, at = [], 0
    for m in found:
        pieces.append(events[at : m.start(3)])
        at = m.end(3)
    return [*pieces, events[at:]], [int(m[3]) for m in found], [each.get(m[1], further) for m in found]


def _shifted(pieces: list[bytes], numbers: list[int], steps: list[int], copy: int) -> bytes:
    out = [b""] * (2 * len(numbers) + 1)
    out[0::2] = pieces
    out[1::2] = [b"%d" % (n + copy * s) for n, s in zip(numbers, steps, strict=True)]
    return b"".join(out)

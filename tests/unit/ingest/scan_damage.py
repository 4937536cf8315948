"""Damage for Kineto documents: every way in which a file was seen to break, and more; what must survive it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dtprof.ingest.kineto.raw import RawTrace
from tests.unit.ingest.scan_lab import Document, records

FRAGMENTS = (
    b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\0", b"\xff", b"\xf0\x9f", b"NaN", b"-inf", b"null", b"1e999",
    b"0",
    b"99999999999999999999999", b'"ph"', b'{"ph":', b'{"ph":"X","args":{', b'{"a":[', b'"traceEvents":[', b'"x":{', b"\\u12",
    b"}}", b"]}",
    b'"name":"', b'"ts":1,', b"\x01", b"#", b"// no comment", b"<html>", b'{"name":"x"}', b"\xef\xbb\xbf", b"}{", b"'",
)  # fmt: skip


Edit = tuple[int, int, bytes]  # from, to, what stands there instead


@dataclass
class Damaged:
    """A document after edits."""

    doc: Document
    edits: list[Edit]

    @property
    def text(self) -> bytes:
        text = self.doc.text
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def intact(self) -> list[tuple]:
        """Records of the events that no edit touched."""
        untouched = [(a, b, r) for a, b, r in self.doc.events if all(b <= start or a >= end for start, end, _ in self.edits)]
        return [r for _, _, r in untouched if r is not None]


def damaged(doc: Document, rng: random.Random, count: int = 1) -> Damaged:
    """``count`` mutations of one document, where they do not meet."""
    edits: list[Edit] = []
    for _ in range(count):
        start, end, new = rng.choice(MUTATIONS)(doc, rng)
        if all(end < a - 1 or start > b + 1 for a, b, _ in edits):
            edits.append((start, end, new))
    return Damaged(doc, edits)


def _inside(doc: Document, rng: random.Random) -> int:
    """Somewhere in the array of events."""
    return rng.randrange(doc.events[0][0], doc.events[-1][1])


def insert(doc, rng):
    at = _inside(doc, rng)
    return at, at, rng.choice(FRAGMENTS)


def delete(doc, rng):
    at = _inside(doc, rng)
    return at, at + 1, b""


def replace(doc, rng):
    at = _inside(doc, rng)
    return at, at + 1, bytes([rng.randrange(256)])


def swap_fragment(doc, rng):
    at = _inside(doc, rng)
    return at, at + rng.randrange(1, 6), rng.choice(FRAGMENTS)


def delete_range(doc, rng):
    at = _inside(doc, rng)
    return at, min(at + rng.randrange(2, 400), doc.events[-1][1]), b""


def repeat_range(doc, rng):
    at = _inside(doc, rng)
    size = rng.randrange(2, 120)
    return at, at, doc.text[at : at + size]


def garble_range(doc, rng):
    at = _inside(doc, rng)
    size = rng.randrange(1, 60)
    return at, at + size, rng.randbytes(size)


def between_events(doc, rng):
    at = rng.choice(doc.events)[rng.randrange(2)]
    return at, at, b"".join(rng.choices(FRAGMENTS, k=rng.randrange(1, 4)))


def lose_structure(doc, rng):
    """One structural character of one event goes, or changes into another."""
    start, end, _ = rng.choice(doc.events)
    places = [i for i in range(start, end) if doc.text[i] in b'{}[],:"\\']
    at = rng.choice(places)
    return at, at + 1, rng.choice([b"", b"", b"{", b"}", b"[", b"]", b",", b":", b'"'])


def bad_number(doc, rng):
    start, end, _ = rng.choice(doc.events)
    places = [i for i in range(start, end) if doc.text[i : i + 1].isdigit() and doc.text[i - 1 : i] in (b" ", b":", b"[")]
    at = rng.choice(places)
    stop = next(i for i in range(at, end) if not (doc.text[i : i + 1].isdigit() or doc.text[i : i + 1] == b"."))
    new = rng.choice(
        [
            b"NaN",
            b"inf",
            b"-Infinity",
            b"1e400",
            b"-nan(ind)",
            b"9" * 25,
            b"1" * 400,
            b"0x12",
            b"1.2.3",
            b"--1",
            b"1e5",
            b"-",
            b"01",
        ]
    )
    return at, stop, new


def truncate(doc, rng):
    at = rng.randrange(1, len(doc.text))
    return at, len(doc.text), b""


def zeros_at_the_end(doc, rng):
    at = _inside(doc, rng)
    return at, len(doc.text), b"\0" * rng.randrange(1, 5000)


def in_the_header(doc, rng):
    """Anywhere before the key traceEvents or after the array."""
    limit = doc.text.find(b'"traceEvents"')
    before = rng.random() < 0.5 and limit > 0
    at = rng.randrange(0, limit) if before else rng.randrange(doc.events[-1][1], len(doc.text))
    return at, at + rng.randrange(2), rng.choice([b"", *FRAGMENTS])


def byte_order_mark(doc, rng):
    return 0, 0, b"\xef\xbb\xbf"


MUTATIONS = (
    insert, delete, replace, swap_fragment, delete_range, repeat_range, garble_range, between_events, lose_structure,
    bad_number, truncate, zeros_at_the_end, in_the_header, byte_order_mark,
)  # fmt: skip


def missing_from(trace: RawTrace, wanted: list[tuple]) -> list[tuple]:
    """Records of ``wanted`` that the trace lacks; those it has must stand in the same order."""
    have = records(trace)
    found = {r: i for i, r in enumerate(have)}
    for kind in ("X", "stf", "i", "M"):
        places = [found[r] for r in wanted if r[0] in kind and r in found]
        assert places == sorted(places)
    return [r for r in wanted if r not in found]

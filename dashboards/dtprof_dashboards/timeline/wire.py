"""Tiles as bytes: the length of a JSON head, the head, and columns of numbers one after another, little-endian.

The head is ``{"rows": [[part, long slices, buckets], …], "names": {part: {code: text}}}``, padded to 8 bytes. Columns over
all rows follow: start and duration of long slices (f64, ns), bucket (f64, number), time in the bucket (f32, share of it),
event of a slice, its name, name of a bucket, count of a bucket (i32), paint of slices and of buckets (u8).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import numpy as np

from dtprof.table import Array
from dtprof_dashboards.timeline.opened import TILE, Timeline

MOST_NAME = 160


def tile(timeline: Timeline, parts: Sequence[int], level: int, index: int) -> bytes:
    """Tile ``index`` of a level, of these parts."""
    rows: list[list[int]] = []
    columns: list[list[Array]] = [[] for _ in range(10)]
    names: dict[int, dict[int, str]] = {}
    for part, found in zip(parts, timeline.tiles(parts, level, index * TILE, TILE), strict=True):
        used: set[int] = set()
        for pyramid, cut in found:
            lane, at = pyramid.lane, cut.slices
            rows.append([part, len(at), len(cut.bucket)])
            used |= {*lane.name[at].tolist(), *cut.name.tolist()}
            kept: tuple[Array, ...] = (
                lane.start[at], lane.end[at] - lane.start[at], cut.bucket, cut.ns / (1 << level), lane.row[at], lane.name[at],
                cut.name, cut.count, lane.paint[at], cut.paint,
            )  # fmt: skip
            for column, values in zip(columns, kept, strict=True):
                column.append(values)
        texts = timeline.run.table("events", part).values("name")
        names[part] = {code: texts[code][:MOST_NAME] for code in used if code >= 0}
    head = json.dumps({"rows": rows, "names": names}, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 8) % 8)
    kinds = ("<f8",) * 3 + ("<f4",) + ("<i4",) * 4 + ("<u1",) * 2
    body = b"".join(_bytes(column, kind) for column, kind in zip(columns, kinds, strict=True))
    return struct.pack("<II", len(head), 0) + head + body


def _bytes(column: list[Array], kind: str) -> bytes:
    return np.concatenate(column).astype(kind).tobytes() if column else b""

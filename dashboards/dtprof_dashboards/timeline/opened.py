"""Timelines of the runs that pages have opened, each under a name that cannot be guessed."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from dtprof.report.facts import Facts
from dtprof.run import Part
from dtprof_dashboards.opened import KEPT, Opened, Watermark
from dtprof_dashboards.timeline.lanes import Track, start_of, tracks
from dtprof_dashboards.timeline.pyramid import Cut, Pyramid

# buckets of one tile
TILE = 1024


class Timeline:
    """The slices of one run; times are ns from ``zero``, the run's first event on the aligned clock."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.run = facts, facts.run
        self.zero = start_of(self.run)
        self._lock = threading.RLock()
        self._tracks: dict[int, list[Track]] = {}
        self._pyramids: dict[int, list[Pyramid]] = {}

    @property
    def parts(self) -> dict[int, Part]:
        """Ordinal -> process."""
        return self.facts.parts

    def tracks(self, part: int) -> list[Track]:
        """The tracks of a part, made on first use."""
        with self._lock:
            if part not in self._tracks:
                self._tracks[part] = tracks(self.run, self.parts[part], self.zero)
                self._pyramids[part] = [Pyramid(row) for track in self._tracks[part] for row in track.rows]
            return self._tracks[part]

    def end(self) -> int:
        """The last end of an event, ns."""
        ends = [int(row.end[-1]) for part in self.parts for track in self.tracks(part) for row in track.rows]
        return max(ends, default=0)

    def tiles(self, parts: Sequence[int], level: int, first: int, count: int) -> list[list[tuple[Pyramid, Cut]]]:
        """Per part and row of its tracks, what is drawn in ``count`` buckets of 2^level ns from bucket ``first`` on."""
        with self._lock:
            found = []
            for part in parts:
                self.tracks(part)
                found.append([(pyramid, pyramid.cut(level, first, count)) for pyramid in self._pyramids[part]])
            return found


_open: OrderedDict[str, tuple[Path, Watermark, Timeline]] = OrderedDict()
_guard = threading.Lock()


def register(path: Path, stamp: Watermark, opened: Opened) -> tuple[str, Timeline]:
    """The name and the timeline of a run as it is now; at most as many are kept as runs are kept open."""
    with _guard:
        for name, (at, seen, timeline) in _open.items():
            if at == path and seen == stamp and timeline.facts is opened.facts:
                _open.move_to_end(name)
                return name, timeline
        # it becomes part of a widget's key, in which streamlit takes two underscores for its own
        name = secrets.token_hex(16)
        timeline = Timeline(opened.facts)
        _open[name] = (path, stamp, timeline)
        while len(_open) > KEPT:
            _open.popitem(last=False)
        return name, timeline


def named(name: str) -> Timeline | None:
    """The timeline of that name; None where none is open under it."""
    with _guard:
        found = _open.get(name)
        return found[2] if found else None

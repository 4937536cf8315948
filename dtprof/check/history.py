"""Stored results in order of time, and where each metric changed.

A result is a run directory, a baseline file (each of its runs counts) or a document of ``dtprof check --json``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dtprof.analyse import study_of
from dtprof.check import baseline as files
from dtprof.check.changepoints import LEAST, Change, change_points
from dtprof.check.metrics import STEP, measure
from dtprof.errors import InputError
from dtprof.ingest import open_run

MOST_PERMUTATIONS = 9999
MOST_RESULTS = 500


@dataclass(frozen=True)
class Point:
    """One result: its name, its instant (Unix s, 0 where not known), its metrics and their kinds."""

    name: str
    when: int
    metrics: dict[str, float]
    kinds: dict[str, str]


@dataclass(frozen=True)
class Series:
    """One metric over time. ``changes`` are places in ``values``; ``p`` of each is adjusted for the number of metrics."""

    metric: str
    kind: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    changes: tuple[Change, ...]

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """(first, end, median) of each stretch between changes."""
        borders = [0, *(c.at for c in self.changes), len(self.values)]
        return [(a, b, median(self.values[a:b])) for a, b in pairwise(borders)]

    def relative(self, change: Change) -> float:
        """Change of the level there as a share (shares and what is 0: as a difference)."""
        levels = self.levels
        at = next(i for i, level in enumerate(levels) if level[0] == change.at)
        before, after = levels[at - 1][2], levels[at][2]
        return after - before if self.kind == "share" or before == 0 else after / before - 1


def read_points(paths: Iterable[str]) -> list[Point]:
    """All results below these folders and in these files, by time, then by name."""
    found: list[Point] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{path}: no such file or folder", "give run directories, baseline files or a folder of them")
        if path.is_dir() and not (path / "manifest.json").exists():
            inside = sorted(p for p in path.iterdir() if p.suffix == ".json" or (p / "manifest.json").exists())
            found += [point for p in inside for point in _points(p)]
        else:
            found += _points(path)
    if not found:
        raise InputError("nothing to look at", "give run directories, baseline files or a folder of them")
    return sorted(found, key=lambda p: (p.when, p.name))


def _points(path: Path) -> list[Point]:
    if path.is_dir():
        run = open_run(str(path))
        measured = measure(study_of(run))
        starts = [s for p in run.parts if isinstance(s := p.extra.get("started_ns"), int)]
        when = min(starts, default=0) // 10**9
        return [Point(path.name, when, {n: m.value for n, m in measured.items()}, {n: m.kind for n, m in measured.items()})]
    try:
        head = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a stored result ({error})", "take it out of the folder") from error
    if isinstance(head, dict) and head.get("kind") == files.KIND:
        return _of_baseline(path)
    if isinstance(head, dict) and "outcome" in head and isinstance(head.get("metrics"), list):
        return [_of_document(path, head)]
    raise InputError(f"{path}: neither a baseline file nor a document of dtprof check --json", "take it out of the folder")


def _of_baseline(path: Path) -> list[Point]:
    return [
        Point(
            f"{path.stem}/{run.run}" if len(b.runs) > 1 else path.stem,
            run.recorded,
            {n: m.values[i] for n, m in b.metrics.items()},
            {n: m.kind for n, m in b.metrics.items()},
        )
        for b in files.read(str(path)).baselines
        for i, run in enumerate(b.runs)
    ]


def _of_document(path: Path, head: dict[str, Any]) -> Point:
    rows = [r for r in head["metrics"] if isinstance(r, dict) and _is_number(r.get("value")) and r.get("kind")]
    when = head.get("recorded")
    return Point(
        path.stem,
        when if isinstance(when, int) else 0,
        {str(r["name"]): float(r["value"]) for r in rows},
        {str(r["name"]): str(r["kind"]) for r in rows},
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def history(points: list[Point], metrics: list[str] | None = None, *, level: float = 0.05, seed: int = 0) -> list[Series]:
    """The series of the metrics asked for (the step; ["all"] for every one), with their changes.

    Of more than 500 results the last are taken. The level is shared among the metrics
    (Bonferroni). InputError for a metric that no result has.
    """
    known = sorted({n for p in points for n in p.metrics})
    wanted = known if metrics == ["all"] else metrics or [STEP]
    for name in wanted:
        if name not in known:
            raise InputError(f"no result has the metric {name!r}", f"there are {', '.join(known) or 'none'}")
    each = level / max(len(wanted), 1)
    permutations = min(max(199, math.ceil(2 / each)), MOST_PERMUTATIONS)
    return [_series(points, n, each, permutations, seed) for n in wanted]


def _series(points: list[Point], name: str, level: float, permutations: int, seed: int) -> Series:
    mine = [p for p in points if name in p.metrics][-MOST_RESULTS:]
    kind = mine[-1].kinds[name]
    values = np.array([p.metrics[name] for p in mine])
    scaled = np.log(values) if kind in ("time", "bytes", "ratio") and (values > 0).all() else values
    changes = change_points(scaled, level=level, permutations=permutations, seed=seed) if len(mine) >= 2 * LEAST else []
    return Series(name, kind, tuple(p.name for p in mine), tuple(values.tolist()), tuple(changes))

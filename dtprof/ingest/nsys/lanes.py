"""Lanes of a process: its threads and its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dtprof.ingest.kineto.spans import Lanes, Rows
from dtprof.ingest.nsys.spans import Place, pid_of
from dtprof.schema import MISSING


def lanes_of(known: Sequence[Place], key: int, place: Rows, threads: Mapping[int, str]) -> Lanes:
    """Lanes of the process ``key``, its threads first; ``place`` numbers the place of every span among ``known``.

    ``threads`` are names by thread id. Contexts share the streams of a device, as CUDA numbers streams.
    """
    mine = {_identity(p): p for p in reversed(known) if p.process == key}
    order = sorted(mine)
    number = {identity: i for i, identity in enumerate(order)}
    of_place = np.array([number.get(_identity(p), -1) if p.process == key else -1 for p in known], np.int32)
    lanes = [mine[identity] for identity in order]
    return Lanes(
        of_place[place],
        np.array([lane.device for lane in lanes], np.int32),
        np.array([lane.stream for lane in lanes], np.int64),
        np.array([pid_of(key) if lane.on_host else MISSING for lane in lanes], np.int64),
        np.array([lane.thread for lane in lanes], np.int64),
        tuple(threads.get(lane.thread) if lane.on_host else None for lane in lanes),
        np.array([lane.context for lane in lanes], np.int64),
    )


def _identity(place: Place) -> tuple[int, int]:
    """What tells lanes of one process apart, in the order of lanes."""
    return place.device, place.thread if place.on_host else place.stream

"""Slices of a lane in an order that nests: Perfetto closes the innermost open slice of a track.

Spans of one stream or thread may overlap without enclosing each other. Such a span goes to the next track of its lane on
which it fits, so that no start and no end is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dtprof.intervals import Ints


class Edge(NamedTuple):
    """A slice of event ``row`` begins or ends on a track; ``depth`` 0 is the lane's own track."""

    ts: int
    row: int
    depth: int
    begins: bool


def edges(rows: NDArray[np.int64], start: Ints, end: Ints) -> Iterator[Edge]:
    """Edges of the events ``rows`` of one lane (arrays over all events), nested on every track.

    Edges of one track come in time order; tracks are interleaved.
    """
    order = rows[np.lexsort((rows, -end[rows], start[rows]))]
    stacks: list[list[tuple[int, int]]] = []
    for row, begins, ends in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        for depth, stack in enumerate(stacks):
            while stack and stack[-1][0] <= begins:
                closed, of = stack.pop()
                yield Edge(closed, of, depth, False)
            if not stack or stack[-1][0] >= ends:
                break
        else:
            depth, stack = len(stacks), []
            stacks.append(stack)
        yield Edge(begins, row, depth, True)
        stack.append((ends, row))
    for depth, stack in enumerate(stacks):
        while stack:
            closed, of = stack.pop()
            yield Edge(closed, of, depth, False)

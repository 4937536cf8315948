"""Fitting the constants on published rows: least squares of log ratios, large errors counted linearly (Huber 1964)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dtprof.plan.constants import Constants
from dtprof.plan.rows import Row
from dtprof.plan.time.step import Estimator

Floats = NDArray[np.float64]

# log ratio from which on an error counts linearly
_DELTA = 0.06
# of the finite differences, in the logarithm of a constant; most of one step
_STEP, _FARTHEST = 1e-4, 0.5
_ROUNDS, _ENOUGH = 40, 1e-5


@dataclass(frozen=True)
class Measured:
    """A row and its measured step, seconds."""

    row: Row
    seconds: float


def seconds(rows: Sequence[Row], constants: Constants) -> Floats:
    """Predicted step times, one estimator for rows of one model, cluster and software."""
    known: dict[object, Estimator] = {}
    out = np.empty(len(rows))
    for place, row in enumerate(rows):
        key = row.model, row.cluster, row.software
        if key not in known:
            known[key] = Estimator(*key, constants)
        out[place] = known[key].step(row.layout).seconds
    return out


def fit(tables: Mapping[str, Sequence[Measured]], names: Sequence[str], start: Constants) -> Constants:
    """The named constants that fit these tables best, each table of the same weight; the others stay as in ``start``."""
    rows = [one.row for table in tables.values() for one in table]
    truth = np.log([one.seconds for table in tables.values() for one in table])
    weight = np.concatenate([np.full(len(table), 1 / np.sqrt(len(table))) for table in tables.values()])

    def errors(logs: Floats) -> Floats:
        constants = replace(start, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.asarray(np.log(seconds(rows, constants)) - truth)

    found = _descend(errors, weight, np.log([getattr(start, name) for name in names]))
    return replace(start, **{name: float(f"{value:.4g}") for name, value in zip(names, np.exp(found), strict=True)})


def _descend(errors: object, weight: Floats, logs: Floats) -> Floats:
    """Levenberg-Marquardt with weights of Huber's loss (Marquardt 1963)."""
    assert callable(errors)
    damping = 1e-3
    now = errors(logs)
    cost = _cost(now, weight)
    for _ in range(_ROUNDS):
        slopes = np.stack([(errors(logs + _STEP * side) - now) / _STEP for side in np.eye(len(logs))], axis=1)
        each = weight**2 * np.minimum(1.0, _DELTA / np.maximum(np.abs(now), 1e-12))
        square, gradient = slopes.T @ (each[:, None] * slopes), slopes.T @ (each * now)
        better = False
        while damping < 1e8 and not better:
            move = np.clip(
                -np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-9), gradient), -_FARTHEST, _FARTHEST
            )
            there = errors(logs + move)
            better = _cost(there, weight) < cost
            damping = max(damping / 5, 1e-9) if better else damping * 5
        if not better:
            break
        gained, logs, now = cost - _cost(there, weight), logs + move, there
        cost -= gained
        if gained < _ENOUGH * cost:
            break
    return logs


def _cost(error: Floats, weight: Floats) -> float:
    size = np.abs(error)
    each = np.where(size < _DELTA, size**2 / 2, _DELTA * (size - _DELTA / 2))
    return float(np.sum(weight**2 * each))

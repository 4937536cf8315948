"""An anomaly: a training step that is slower than its own history.

A step is slow when it takes longer than median + max(k x 1.4826 x MAD, floor x median), both over the last ``history``
uncaptured training steps, itself not included; 1.4826 x MAD estimates the standard deviation of a normal distribution
(Rousseeuw and Croux 1993, "Alternatives to the median absolute deviation"). The limit is renewed every 16 steps.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dtprof.errors import InputError
from dtprof.session.windows import POLL_S, Request, append, new_id

LEAST_HISTORY = 20
RENEW = 16
SIGMA_OF_MAD = 1.4826
# how far ahead the captured steps lie: long enough for every rank to look twice
LEAD_S = 4 * POLL_S
LEAST_LEAD = 3


@dataclass(frozen=True)
class AnomalyOptions:
    """``k`` and ``floor`` as above; ``steps`` are captured, at most once in ``gap_s`` seconds and ``most`` times."""

    k: float = 6.0
    floor: float = 0.5
    history: int = 100
    steps: int = 3
    gap_s: float = 300.0
    most: int = 5


def options_of(anomaly: bool | Mapping[str, Any]) -> AnomalyOptions | None:
    """None for False, the defaults for True; a mapping changes some. Raises InputError for what is no option."""
    if not isinstance(anomaly, Mapping):
        return AnomalyOptions() if anomaly else None
    known = [f.name for f in fields(AnomalyOptions)]
    for key, value in anomaly.items():
        if key not in known:
            raise InputError(f"anomaly has no option {key!r}", f"it has {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise InputError(f"anomaly[{key!r}] = {value!r} is no number of 0 or more", "leave it out for the default")
    whole = ("history", "steps", "most")
    values: dict[str, Any] = {key: int(value) if key in whole else float(value) for key, value in anomaly.items()}
    return AnomalyOptions(**values)


class Detector:
    """Keeps the history of one process and says which steps are slow."""

    def __init__(self, options: AnomalyOptions) -> None:
        self.options = options
        self._history: deque[int] = deque(maxlen=max(options.history, LEAST_HISTORY))
        self._since = 0
        self.limit_ns: int | None = None
        self.median_ns = 0

    def slow(self, duration_ns: int) -> int | None:
        """The limit that this step exceeds, or None; the step joins the history."""
        limit = self.limit_ns
        exceeded = limit if limit is not None and duration_ns > limit else None
        self._history.append(duration_ns)
        self._since += 1
        if len(self._history) >= LEAST_HISTORY and (limit is None or self._since >= RENEW):
            self._renew()
        return exceeded

    def _renew(self) -> None:
        self._since = 0
        median = statistics.median(self._history)
        mad = statistics.median(abs(d - median) for d in self._history)
        beyond = max(self.options.k * SIGMA_OF_MAD * mad, self.options.floor * median)
        self.limit_ns, self.median_ns = int(median + beyond), int(median)


class Watcher:
    """Asks for a capture of the same later steps on all ranks (``dtprof.session.windows``) when a step of this one is slow."""

    def __init__(self, options: AnomalyOptions, run: Path, run_key: str, attempt: int, rank: int) -> None:
        self.options, self.rank = options, rank
        self._run, self._key, self._attempt = run, run_key, attempt
        self._detector = Detector(options)
        self._asked_ns: list[int] = []
        self.slow_steps = 0

    def see(self, step: int, duration_ns: int, now_ns: int, told: Sequence[Mapping[str, Any]]) -> bool:
        """A training step has ended; True when a capture was asked for. ``told``: the requests that are known already."""
        limit = self._detector.slow(duration_ns)
        if limit is None:
            return False
        self.slow_steps += 1
        recent = [*self._asked_ns[-1:], *(int(t["asked_ns"]) for t in told if t["why"] == "anomaly")]
        if len(self._asked_ns) >= self.options.most or (recent and now_ns - max(recent) < self.options.gap_s * 1e9):
            return False
        self._asked_ns.append(now_ns)
        ahead = max(LEAST_LEAD, math.ceil(LEAD_S * 1e9 / max(self._detector.median_ns, 1)))
        first = step + 1 + ahead
        request = Request(
            run_key=self._key, attempt=self._attempt, id=new_id(), first=first, end=first + max(self.options.steps, 1),
            why="anomaly", asked_ns=now_ns, gap_s=self.options.gap_s, rank=self.rank, step=step, dur_ns=duration_ns,
            limit_ns=limit,
        )  # fmt: skip
        append(self._run, request)
        return True

    def described(self) -> dict[str, Any]:
        """Options, the limit of now, and how many steps were slow; for part.json."""
        return {**asdict(self.options), "limit_ns": self._detector.limit_ns, "slow_steps": self.slow_steps}

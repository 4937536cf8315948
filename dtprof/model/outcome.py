"""What a prediction says, whatever model made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dtprof.edits import Edit, as_mapping
from dtprof.findings import Prediction
from dtprof.run import Run

# what to measure where the steps of a run cannot be replayed
MORE_STEPS = "more captured steps, on a machine that does nothing else, would tell noise from what the model lacks"


@dataclass(frozen=True)
class Outcome:
    """A predicted step, ns, with its interval; or ``withheld``, the reasons why there is none (the values are then None).

    ``measured_ns`` is the step that it is compared with. ``replay_error`` and ``unexplained`` are the model's own record,
    ratios; ``unexplained`` is None for models without a critical path. ``notes`` say what the numbers rest on; ``make_run``
    makes the simulated run. ``cautious_ns``, where a model has it: the step if what it knows least went against the change; of
    several changes the one to advise is the one with the shortest.
    """

    edits: tuple[Edit, ...]
    model: str
    measured_ns: float | None
    predicted_ns: float | None
    low_ns: float | None
    high_ns: float | None
    replay_error: float | None
    unexplained: float | None
    withheld: tuple[str, ...]
    notes: tuple[str, ...] = ()
    gates: dict[str, Any] | None = None
    make_run: Callable[[], Run] | None = None
    cautious_ns: float | None = None

    @property
    def saved_ns(self) -> float | None:
        """Measured minus predicted."""
        if self.measured_ns is None or self.predicted_ns is None:
            return None
        return self.measured_ns - self.predicted_ns

    def saving(self) -> Prediction | None:
        """The saving in seconds per step, as a finding holds it; None where withheld."""
        if self.measured_ns is None or self.low_ns is None or self.high_ns is None or self.saved_ns is None:
            return None
        return Prediction(
            self.saved_ns / 1e9, (self.measured_ns - self.high_ns) / 1e9, (self.measured_ns - self.low_ns) / 1e9,
            self.replay_error or 0.0, self.unexplained,
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The JSON of ``dtprof whatif``."""
        return {
            "schema": 1,
            "edits": as_mapping(self.edits),
            "model": self.model,
            "measured_ns": _whole(self.measured_ns),
            "predicted_ns": _whole(self.predicted_ns),
            "low_ns": _whole(self.low_ns),
            "high_ns": _whole(self.high_ns),
            "saved_ns": _whole(self.saved_ns),
            "prediction": asdict(saving) if (saving := self.saving()) else None,
            "replay_error": self.replay_error,
            "unexplained_fraction": self.unexplained,
            "withheld": list(self.withheld),
            "notes": list(self.notes),
            "gates": self.gates,
        }


def withheld(
    edits: Sequence[Edit],
    reasons: Sequence[str],
    replay_error: float | None = None,
    model: str = "none",
    gates: dict[str, Any] | None = None,
) -> Outcome:
    """No prediction, and why."""  # fmt: skip
    return Outcome(tuple(edits), model, None, None, None, None, replay_error, None, tuple(reasons), gates=gates)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)

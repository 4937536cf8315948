"""The step that a prediction is compared with."""

from __future__ import annotations

import numpy as np

from dtprof.run import Part, Run

# steps around a capture that are not as others: hooks go on before it, traces are written after it
_AROUND = (-3, -2, -1, 0, 1)
ENOUGH = 5


def typical_step(run: Run, parts: list[Part], traced_ns: float) -> tuple[float, int]:
    """(median over the untraced training steps of the longest duration over the ranks in ns, their number).

    With fewer than five of those: (``traced_ns``, 0).
    """
    plain = list(plain_steps(run, parts).values())
    return (float(np.median(plain)), len(plain)) if len(plain) >= ENOUGH else (traced_ns, 0)


def plain_steps(run: Run, parts: list[Part]) -> dict[int, float]:
    """The training steps that are neither traced nor next to a traced one -> their longest duration over the ranks, ns."""
    longest: dict[int, float] = {}
    captured: set[int] = set()
    for part in parts:
        steps = run.table("steps", part.ordinal)
        kinds = steps.text("kind")
        for row, step in enumerate(steps["step"].tolist()):
            if kinds[row] in (None, "train"):
                longest[step] = max(longest.get(step, 0.0), float(steps["host_dur"][row]))
                if steps["captured"][row]:
                    captured.add(step)
    return {step: ns for step, ns in longest.items() if not captured & {step - near for near in _AROUND}}

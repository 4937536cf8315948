"""What the session itself recorded of a part's steps, without a tracer: lengths, numbers per step, facts of collectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from dtprof.run import Part, Run

LEAST_STEPS = 5


def usable(run: Run, part: int) -> dict[int, int]:
    """Step -> ns of the training steps that no tracer slowed; of all training steps where fewer than LEAST_STEPS are left."""
    steps = run.table("steps", part)
    train = steps.is_("kind", "train") & steps.known("host_dur")
    plain = train & ~steps["captured"]
    rows = plain if np.count_nonzero(plain) >= LEAST_STEPS else train
    return dict(zip(steps["step"][rows].tolist(), steps["host_dur"][rows].tolist(), strict=True))


def metric(run: Run, part: int, name: str) -> dict[int, float]:
    """Step -> value of a metric of the whole step (of no layer, expert or bucket)."""
    table = run.table("metrics", part)
    rows = table.is_("metric", name)
    return dict(zip(table["step"][rows].tolist(), table["value"][rows].tolist(), strict=True))


def facts(part: Part, collector: str) -> dict[str, Any]:
    """What a collector noted in part.json; empty where it did not run."""
    states = part.extra.get("collectors")
    for state in states if isinstance(states, list) else []:
        if isinstance(state, dict) and state.get("name") == collector and isinstance(state.get("facts"), dict):
            return dict(state["facts"])
    return {}

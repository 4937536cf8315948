"""A search as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dtprof.plan.calibrated import Calibration
from dtprof.plan.search.explain import Neighbour, parts
from dtprof.plan.search.found import Candidate, Found, Miss
from dtprof.plan.search.words import brief


def document(found: Found, rests: Calibration | None) -> dict[str, Any]:
    """Times in seconds, memory in bytes; ``low`` and ``high`` are of a step. ``best`` is null where nothing fits."""
    return {
        "schema": 1,
        "best": None if found.best is None else candidate(found.best, rests),
        "ranked": [candidate(one, rests) for one in found.ranked],
        "front": [candidate(one, rests) for one in found.front],
        "layouts_tried": found.tried,
        "lost": [_miss(miss) for miss in found.misses],
        "would_fit": list(found.mend),
        "calibrated_by": None if rests is None else rests.name,
    }


def candidate(one: Candidate, rests: Calibration | None) -> dict[str, Any]:
    """A layout with its prediction."""
    low, high = rests.interval(one.seconds) if rests else (one.seconds, one.seconds)
    return {
        "name": brief(one.layout),
        "layout": {**asdict(one.layout), "offload": list(one.layout.offload), "gpus": one.layout.gpus},
        "seconds_per_step": one.seconds,
        "low": low,
        "high": high,
        "tokens_s": one.tokens_per_s,
        "gpu_hours_per_1e9_tokens": one.gpu_hours,
        "cost_per_1e9_tokens": one.cost if one.price else None,
        "fit": one.fit,
        "memory": one.memory.document(),
        "seconds_by_part": parts(one.time),
    }


def neighbour(one: Neighbour) -> dict[str, Any]:
    """One change of a layout."""
    return {"change": one.what, "name": brief(one.layout), "seconds_per_step": one.seconds, "why": one.why}


def _miss(miss: Miss) -> dict[str, Any]:
    return {
        "reason": miss.reason,
        "count": miss.count,
        "nearest": miss.nearest.replace("\u00a0", " "),
        "nearest_layout": None if miss.layout is None else brief(miss.layout),
    }

"""Goodput in words and as a document: what share of the run's time was training."""

from __future__ import annotations

from typing import Any

from dtprof.analyse.goodput import CATEGORIES, WORDS, GoodputResult
from dtprof.numbers import counted, percent, time

# shares below this are not worth a word
_LEAST = 0.01


def sentence(result: GoodputResult | None) -> str:
    """``81% of 12.3 s were training; starting 12%, saving checkpoints 4%``; empty where it is not known."""
    if result is None or result.share is None:
        return ""
    shares = sorted(((ns, key) for key, ns in result.shares().items() if key != "productive"), reverse=True)
    rest = ", ".join(f"{WORDS[key]} {percent(share)}" for share, key in shares if share >= _LEAST)
    restarts = f" ({counted(result.restarts, 'restart')})" if result.restarts else ""
    of = f"{percent(result.share)} of {time(result.wall_ns)} were training{restarts}"
    return f"{of}; {rest}" if rest else of


def document(result: GoodputResult | None) -> dict[str, Any] | None:
    """Shares by category and times by rank, ns; None where nothing is known."""
    if result is None or not result.ranks:
        return None
    return {
        "share": result.share,
        "wall_ns": round(result.wall_ns),
        "shares": {key: result.shares()[key] for key in CATEGORIES},
        "restarts": result.restarts,
        "lost_steps": result.lost_steps,
        "ranks": [{"rank": r.rank, "wall_ns": r.wall_ns, "attempts": r.attempts, "ns": dict(r.ns)} for r in result.ranks],
    }

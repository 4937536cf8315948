"""From results to findings, and from findings to a verdict."""

from __future__ import annotations

from dtprof.advise.recommend import findings, verdict

__all__ = ["findings", "verdict"]

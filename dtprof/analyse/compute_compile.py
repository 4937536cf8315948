"""What torch.compile did in the run: compilations that came again, and graphs that broke.

``study.result("compile")`` is a ``CompileResult``, from the metrics and texts of the collector ``compile``.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtprof.analyse.host_steps import metric
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING

_RECOMPILED, _BROKE = "recompiled: ", "graph break: "


@dataclass(frozen=True)
class RankCompiles:
    """One rank: steps in which code was compiled again, the ns that took, graph breaks, and why, as torch puts it; ``run_ns``:
    all of its steps together."""

    rank: int
    again: tuple[int, ...]
    again_ns: float
    breaks: int
    steps: int
    run_ns: float
    reasons: tuple[str, ...]
    break_reasons: tuple[str, ...]


@dataclass(frozen=True)
class CompileResult:
    """Ranks that compiled anything."""

    ranks: tuple[RankCompiles, ...]


def analyse(study: Lens) -> CompileResult:
    """Every part with a compilation."""
    found = [r for p in study.run.parts if p.rank is not None and (r := _of_part(study.run, p.ordinal, p.rank)) is not None]
    return CompileResult(tuple(found))


def _of_part(run: Run, ordinal: int, rank: int) -> RankCompiles | None:
    compiles = metric(run, ordinal, "compiles")
    if not compiles:
        return None
    recompiles, took = metric(run, ordinal, "recompiles"), metric(run, ordinal, "compile_time")
    again = tuple(sorted(step for step, count in recompiles.items() if count > 0))
    steps = run.table("steps", ordinal)
    lengths = steps["host_dur"][(steps["host_dur"] != MISSING) & ~steps.is_("kind", "restart")]
    texts = [text or "" for text in run.table("quality", ordinal).text("what")]
    return RankCompiles(
        rank, again, sum(took.get(step, 0.0) for step in again), int(sum(metric(run, ordinal, "graph_breaks").values())),
        len(lengths), float(lengths.sum()), _told(texts, _RECOMPILED), _told(texts, _BROKE),
    )  # fmt: skip


def _told(texts: list[str], prefix: str) -> tuple[str, ...]:
    return tuple(text.removeprefix(prefix) for text in texts if text.startswith(prefix))

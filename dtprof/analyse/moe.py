"""Mixtures of experts: tokens of every expert and the time that their imbalance costs, layer by layer.

Tokens come from the job's metrics (``moe_tokens`` and ``moe_dropped`` by layer and expert). What the imbalance costs is
waiting: the all-to-alls of a layer that the rank with most tokens enters last, mean over the ranks, as that is the excess of
the busiest rank over the mean. Bytes on the wire leave out what a rank keeps for itself, and are missing where the split is not
known.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dtprof.analyse.results import AccountingResult, CommResult, Operation, settled
from dtprof.protocols import Lens
from dtprof.ranges import parse_range
from dtprof.run import Run
from dtprof.schema import MISSING


@dataclass(frozen=True)
class Layer:
    """One layer, per step: ``tokens`` by expert; ``by_rank`` (empty where not known whose the experts are); ``dropped``: share
    of the assignments, None where not recorded; ns that its all-to-alls move (``dispatch_ns``, ``combine_ns``, ``other_ns``)
    and that ranks wait in them for the busiest rank (``lost_ns``); ``wire_bytes`` of a rank.
    """

    name: str
    tokens: dict[int, float]
    by_rank: dict[int, float]
    dropped: float | None
    dispatch_ns: float
    combine_ns: float
    other_ns: float
    lost_ns: float
    wire_bytes: float | None
    operations: tuple[Operation, ...]

    @property
    def hot(self) -> int:
        """The expert with most tokens."""
        return max(self.tokens, key=lambda e: self.tokens[e])

    @property
    def ratio(self) -> float:
        """Tokens of the hottest expert by the mean of all."""
        return self.tokens[self.hot] / max(float(np.mean(list(self.tokens.values()))), 1e-9)

    @property
    def rank_ratio(self) -> float:
        """Tokens of the busiest rank by the mean of the ranks; 1 where not known."""
        held = list(self.by_rank.values())
        return max(held) / max(float(np.mean(held)), 1e-9) if held else 1.0


@dataclass(frozen=True)
class MoeResult:
    """Layers in their order; ``owners``: expert -> ranks that have it; ``steps`` that tokens are means over."""

    layers: tuple[Layer, ...]
    owners: dict[int, tuple[int, ...]]
    steps: tuple[int, ...]


def analyse(study: Lens) -> MoeResult:
    """Layers for which the job recorded tokens."""
    run = study.run
    accounting: AccountingResult = study.result("accounting")
    inside = {s.step for p in accounting.parts for s in settled(p.steps)}
    tokens, held = _sums(run, "moe_tokens", inside)
    dropped, _ = _sums(run, "moe_dropped", inside)
    if not tokens:
        return MoeResult((), {}, ())
    owners = _owners(run, held)
    operations = _operations(study, inside)
    steps = max(len(inside), 1)
    layers = []
    for name, experts in tokens.items():
        by_rank: dict[int, float] = defaultdict(float)
        for rank, mine in held.items():
            for (layer, expert), count in mine.items():
                if layer == name and rank in owners.get(expert, ()):
                    by_rank[rank] += count
        gone = dropped.get(name)
        lost = sum(gone.values()) / max(sum(gone.values()) + sum(experts.values()), 1e-9) if gone else None
        layers.append(_layer(run, name, experts, dict(by_rank), lost, tuple(operations.get(name, ())), steps))
    return MoeResult(tuple(layers), owners, tuple(sorted(inside)))


Tokens = dict[str, dict[int, float]]


def _sums(run: Run, metric: str, steps: set[int]) -> tuple[Tokens, dict[int, dict[tuple[str, int], float]]]:
    """(layer -> expert -> per step over all ranks, rank -> (layer, expert) -> per step)."""
    total: Tokens = {}
    by_rank: dict[int, dict[tuple[str, int], float]] = defaultdict(lambda: defaultdict(float))
    seen = set[int]()
    for part in run.parts:
        table = run.table("metrics", part.ordinal)
        rows = table.take(table.is_("metric", metric) & table.known("expert") & table.known("layer"))
        columns = (rows[c].tolist() for c in ("step", "expert", "value"))
        for layer, step, expert, value in zip(rows.text("layer"), *columns, strict=True):
            if step in steps:
                seen.add(step)
                mine = total.setdefault(str(layer), {})
                mine[expert] = mine.get(expert, 0.0) + value
                by_rank[part.rank if part.rank is not None else -1][str(layer), expert] += value
    count = max(len(seen), 1)
    scaled = {layer: {e: v / count for e, v in sorted(mine.items())} for layer, mine in total.items()}
    return scaled, {rank: {k: v / count for k, v in mine.items()} for rank, mine in by_rank.items()}


def _owners(run: Run, held: dict[int, dict[tuple[str, int], float]]) -> dict[int, tuple[int, ...]]:
    """Expert -> the ranks that compute it: those that record its tokens, else those whose events carry its tag."""
    recorded = {rank: {expert for _, expert in mine} for rank, mine in held.items()}
    if len({frozenset(mine) for mine in recorded.values()}) == 1 and len(recorded) > 1:
        recorded = {}
        for part in run.parts:
            events = run.table("events", part.ordinal)
            if part.rank is not None:
                recorded[part.rank] = set(np.unique(events["expert"][events.known("expert")]).tolist())
    out: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for rank in sorted(recorded):
        for expert in recorded[rank]:
            out[expert] = (*out[expert], rank)
    return dict(out)


def _operations(study: Lens, steps: set[int]) -> dict[str, list[Operation]]:
    """Layer -> its all-to-alls, by the tag of the event or of the range that issued it."""
    comm: CommResult = study.result("comm")
    out: dict[str, list[Operation]] = defaultdict(list)
    for o in comm.operations:
        if o.op != "all_to_all" or o.step not in steps:
            continue
        part, event = next(iter(o.events.items()))
        events = study.run.table("events", part)
        code = int(events["layer"][event])
        layer = events.values("layer")[code] if code >= 0 else parse_range(o.label)[1].get("layer")
        if layer is not None:
            out[str(layer)].append(o)
    return out


def _layer(
    run: Run,
    name: str,
    tokens: dict[int, float],
    by_rank: dict[int, float],
    dropped: float | None,
    operations: tuple[Operation, ...],
    steps: int,
) -> Layer:
    busiest = max(by_rank, key=lambda r: by_rank[r]) if by_rank else None
    moved: dict[str, float] = defaultdict(float)
    lost = 0.0
    for o in operations:
        base = parse_range(o.label)[0].partition(" ")[0]
        moved[base if base in ("dispatch", "combine") else "other"] += (o.transfer_ns or 0) / steps
        waits = [w for w in o.wait_ns.values() if w is not None]
        if busiest is not None and o.last_rank == busiest and waits:
            lost += sum(waits) / len(waits) / steps
    wire = _wire(run, operations)
    return Layer(
        name, tokens, by_rank, dropped, moved["dispatch"], moved["combine"], moved["other"], lost,
        None if wire is None else wire / steps, operations,
    )  # fmt: skip


def _wire(run: Run, operations: tuple[Operation, ...]) -> float | None:
    """Bytes that a rank sends to others, mean over the ranks; None where a split is not known."""
    total, parts = 0, set[int]()
    for o in operations:
        for part, event in o.events.items():
            comm = run.table("comm", part)
            rows = np.flatnonzero(comm["event"] == event)
            sent = int(comm["bytes_wire"][rows[0]]) if len(rows) else MISSING
            if sent == MISSING:
                return None
            total, parts = total + sent, parts | {part}
    return total / len(parts) if parts else None

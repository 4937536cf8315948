"""What the report could not see: the quality table for people, one line per problem, and the limits of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dtprof.advise.places import timed_steps
from dtprof.analyse.results import settled
from dtprof.numbers import NOT_KNOWN, count, listing, named, percent
from dtprof.report.facts import Facts, QualityRow

ALL = "all"
FEW = 3


@dataclass(frozen=True)
class MissingRow:
    """One line of the table: who, where, what, how often, what it changes."""

    ranks: str
    source: str
    what: str
    count: str
    effect: str

    @property
    def who(self) -> str:
        """``all ranks``, ``rank 3``, ``ranks 1, 3``, ``part 5``."""
        if self.ranks == ALL:
            return "all ranks"
        if not self.ranks[:1].isdigit():
            return self.ranks
        return f"rank {self.ranks}" if self.ranks.isdigit() else f"ranks {self.ranks}"


def missing(facts: Facts) -> list[MissingRow]:
    """Limits of the run first, then the quality rows, equal ones of several ranks drawn together."""
    return [*_limits(facts), *_quality(facts)]


def _limits(facts: Facts) -> Iterable[MissingRow]:
    yield from _absent_ranks(facts)
    yield from _steps(facts)
    for account in facts.accounting.parts:
        if account.unreliable:
            who = str(account.rank) if account.rank is not None else f"part {account.part}"
            effect = "idle time and step numbers of this rank cannot be trusted"
            yield MissingRow(who, "accounting", account.unreliable, "1", effect)
    ungrouped = {part: share for part, share in facts.comm.ungrouped_share.items() if share > 0}
    if ungrouped:
        ranks = [r for r in (facts.parts[p].rank for p in ungrouped if p in facts.parts) if r is not None]
        who, much = _who(facts, ranks, len(ungrouped)), percent(max(ungrouped.values()))
        what = f"{much} of communication time (the most of any rank) names no group"
        matched = any(o.matched_by == "order" for o in facts.comm.operations)
        effect = "its operations are matched across ranks by their order" if matched else "it is not matched across ranks"
        yield MissingRow(who, "collectives", what, "1", effect)
    if facts.run.manifest.own_cost is None:
        own = facts.run.format == "dtprof"
        what = "Own cost was not measured in this run" if own else "Recorded by another program"
        yield MissingRow(ALL, "own cost", what, "1", "what measuring cost is not known")


def _absent_ranks(facts: Facts) -> Iterable[MissingRow]:
    world, present = facts.run.world_size, facts.run.ranks
    if world is None or not present or len(present) >= world:
        return
    absent = sorted(set(range(world)) - set(present))
    verb = "is" if len(absent) == 1 else "are"
    effect = "operations of absent ranks are not split into waiting and moving; their transfers are upper bounds"
    yield MissingRow(listing(absent), "ranks", f"{len(absent):,} of {world:,} ranks {verb} not in the set", "1", effect)


def _steps(facts: Facts) -> Iterable[MissingRow]:
    accounts = [a for a in facts.accounting.parts if a.steps]
    told = {q.part for q in facts.quality if q.what.startswith("no steps")}
    empty = [a for a in facts.accounting.parts if not a.steps and a.part not in told]
    if empty:
        who = _who(facts, [a.rank for a in empty if a.rank is not None], len(empty))
        effect = "no time per step; totals of the whole file only"
        what = "No step was traced" if timed_steps(facts.run) else "No step is marked"
        yield MissingRow(who, "steps", what, count(len(empty)), effect)
    if not accounts:
        return
    used = facts.settled_steps
    if not all(s.complete for a in accounts for s in settled(a.steps)):
        what = f"The capture ends inside {named('step', used)}; no later step shows where it ends"
        effect = "its time is counted to its last operation; there is no median and no history"
        yield MissingRow(ALL, "steps", what, count(len(used)), effect)
    elif len(used) == 1:
        effect = "no median and no spread: one step may be unlike the others"
        yield MissingRow(ALL, "steps", f"Step {used[0]} is the only complete step", "1", effect)


def _quality(facts: Facts) -> Iterable[MissingRow]:
    merged: dict[tuple[str, str], list[QualityRow]] = {}
    for row in facts.quality:
        merged.setdefault((row.what, row.effect), []).append(row)
    for (what, effect), rows in merged.items():
        who = _who(facts, [r.rank for r in rows if r.rank is not None], len({r.part for r in rows}))
        yield MissingRow(who, _sources(rows), what, _counts(rows), effect or "no effect on this report is known")


def _sources(rows: Sequence[QualityRow]) -> str:
    """The source, or the first of several and how many more there are."""
    names = list(dict.fromkeys(r.source for r in rows if r.source))
    if not names:
        return "not named"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


def _counts(rows: Sequence[QualityRow]) -> str:
    """``64 + 64`` for a few ranks, the sum for more."""
    known = [r.count for r in rows if r.count is not None]
    if not known:
        return NOT_KNOWN
    return " + ".join(map(count, known)) if 1 < len(known) <= FEW else count(sum(known))


def _who(facts: Facts, ranks: list[int], parts: int) -> str:
    if parts >= len(facts.run.parts):
        return ALL
    return listing(ranks) if ranks else "rank not known"

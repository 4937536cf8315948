"""The budget of a step: one row per process, whose parts sum to its step, and the mean of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dtprof.advise.places import timed_steps
from dtprof.analyse.results import ACCOUNTING, PartAccount, settled
from dtprof.numbers import count, counted, listing
from dtprof.report.facts import Facts
from dtprof.run import Part

MANY = 16
WORST_CULPRITS = 4
MOST_ROWS = 64
# waiting below this share of a step is not worth a note
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class BudgetRow:
    """One bar. ``parts`` maps the keys of the accounting to ns per step and sums to ``total``; ``hidden`` is beside it."""

    label: str
    part: int | None
    rank: int | None
    parts: dict[str, float]
    hidden: float
    culprit: bool = False
    note: str = ""

    @property
    def total(self) -> float:
        """Length of the step in ns: the sum of the parts."""
        return sum(self.parts.values())


def part_label(part: Part, parts: Sequence[Part]) -> str:
    """``rank 3``; with window or attempt where the rank has several parts; ``part 5`` where the rank is not known."""
    if part.rank is None:
        return f"part {part.ordinal}"
    same = [p for p in parts if p.rank == part.rank]
    if len(same) == 1:
        return f"rank {part.rank}"
    if len({p.window for p in same}) == len(same):
        return f"rank {part.rank}, window {part.window}"
    if len({p.attempt for p in same}) == len(same):
        return f"rank {part.rank}, attempt {part.attempt}"
    return f"rank {part.rank}, part {part.ordinal}"


def budget(facts: Facts) -> list[BudgetRow]:
    """One row per part that has steps: the mean of its settled steps, in rank order."""
    rows = [_row(facts, account) for account in facts.accounting.parts if account.steps]
    rows.sort(key=lambda r: (r.rank is None, r.rank or 0, r.part or 0))
    return _annotate(rows)


def mean(rows: Sequence[BudgetRow]) -> BudgetRow:
    """The mean of the rows, key by key; ``rows`` is not empty."""
    parts = {key: sum(r.parts[key] for r in rows) / len(rows) for key in ACCOUNTING}
    return BudgetRow("mean", None, None, parts, sum(r.hidden for r in rows) / len(rows))


def shown(rows: Sequence[BudgetRow]) -> list[BudgetRow]:
    """All rows up to 16; above, the shortest, median and longest step and the culprits (at most four), each once."""
    if len(rows) <= MANY:
        return list(rows)
    by_time = sorted(rows, key=lambda r: r.total)
    picks = [(by_time[0], "shortest"), (by_time[len(by_time) // 2], "median"), (by_time[-1], "longest")]
    picks += [(r, "culprit") for r in rows if r.culprit][:WORST_CULPRITS]
    names: dict[int, list[str]] = {}
    for row, name in picks:
        names.setdefault(rows.index(row), []).append(name)
    return [replace(rows[i], note="; ".join(filter(None, [", ".join(names[i]), rows[i].note]))) for i in sorted(names)]


def no_steps(facts: Facts) -> str:
    """Why no bar can be drawn: steps are not marked, or were timed by the step clock and never traced."""
    if timed_steps(facts.run):
        return "The steps of this run were timed but not traced, so what lies inside them is not known."
    return "No step is marked in this run, so no time per step can be given. Mark steps with prof.step()."


_HOST_TOTALS = {"span_ns": "span", "compute_ns": "compute", "comm_ns": "communication", "exposed_comm_ns": "of it exposed"}
_DEVICE_TOTALS = {**_HOST_TOTALS, "copy_ns": "copy", "idle_ns": "idle"}


def totals(facts: Facts) -> tuple[tuple[str, ...], list[tuple[str, tuple[int, ...]]]]:
    """The whole capture, where no step is known: heads, then (label, ns) of every part (at most 64)."""
    on_device = facts.accounting.on_device
    keys = _DEVICE_TOTALS if on_device else _HOST_TOTALS
    rows = []
    for account in facts.accounting.parts[:MOST_ROWS]:
        source = account.device if on_device else account.host
        label = part_label(facts.parts[account.part], facts.run.parts)
        rows.append((label, tuple(getattr(source, key) for key in keys)))
    return tuple(keys.values()), rows


def short_note(row: BudgetRow) -> str:
    """The first part of a note, where there is no room for all of it."""
    return row.note.partition(";")[0]


def basis(facts: Facts) -> str:
    """What the bars are: ``Device time of step 10``, ``Host time, mean of 5 steps (5 to 9)``."""
    clock = "Device time" if facts.accounting.on_device else "Host time"
    steps = facts.settled_steps
    if len(steps) == 1:
        return f"{clock} of step {steps[0]}"
    return f"{clock} per step, mean of {counted(len(steps), 'step')} ({listing(steps)})"


def left_out(rows: Sequence[BudgetRow]) -> str:
    """A sentence on rows that ``shown`` leaves out, or nothing."""
    hidden = len(rows) - len(shown(rows))
    return f"{count(hidden)} of {count(len(rows))} ranks lie between these and are not drawn." if hidden else ""


def _row(facts: Facts, account: PartAccount) -> BudgetRow:
    steps = settled(account.steps)
    parts = {key: sum(s.accounting[key] for s in steps) / len(steps) for key in ACCOUNTING}
    known = facts.parts.get(account.part)
    label = part_label(known, facts.run.parts) if known else f"part {account.part}"
    hidden = sum(s.comm_hidden_ns for s in steps) / len(steps)
    return BudgetRow(label, account.part, account.rank, parts, hidden, account.rank in facts.culprits)


def _annotate(rows: list[BudgetRow]) -> list[BudgetRow]:
    """Mark the culprit that waits least of all, where the others clearly wait: it is whom they wait for."""
    if len(rows) < 2:
        return rows
    waits = [r.parts["comm_wait_ns"] for r in rows]
    at = waits.index(min(waits))
    others = waits[:at] + waits[at + 1 :]
    if rows[at].culprit and waits[at] < min(others) and max(others) > LEAST_SHARE * rows[at].total:
        note = "waits least: the others wait for it"
        return [replace(r, note=note) if i == at else r for i, r in enumerate(rows)]
    return rows

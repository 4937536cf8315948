"""Communication operations in the words of a report: which are worst, who waited, who came last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtprof.analyse.results import Operation
from dtprof.numbers import NOT_KNOWN, named, size, spelled, time
from dtprof.report.budget import MANY
from dtprof.report.facts import Facts

WORST = 20


@dataclass(frozen=True)
class Selection:
    """The worst operations in order of time, and how many others there are."""

    operations: tuple[Operation, ...]
    total: int

    @property
    def left_out(self) -> int:
        """Operations that are not shown."""
        return self.total - len(self.operations)

    @property
    def sentence(self) -> str:
        """What was left out, or nothing."""
        if not self.left_out:
            return ""
        worst = f"The {len(self.operations)} with the most waiting of {self.total:,}"
        rest = "the other one is" if self.left_out == 1 else f"the other {self.left_out:,} are"
        return f"{worst}; {rest} in the JSON only."

    @property
    def heading(self) -> str:
        """``Eight operations: the waiting and the moving``."""
        many = spelled(self.total).capitalize()
        return f"{many} operation{'' if self.total == 1 else 's'}: the waiting and the moving"


def select(operations: Sequence[Operation], limit: int = WORST) -> Selection:
    """The ``limit`` operations with most waiting (most time where waits are not known), in order of their start."""
    worst = sorted(operations, key=weight, reverse=True)[:limit]
    return Selection(tuple(sorted(worst, key=lambda o: (o.first_start_ns, o.id))), len(operations))


def weight(operation: Operation) -> tuple[int, int]:
    """How bad: summed wait, then summed time."""
    return wait_sum(operation) or 0, sum(operation.dur_ns.values())


def wait_sum(operation: Operation) -> int | None:
    """Wait summed over the ranks, ns; None where it is not known."""
    waits = [w for w in operation.wait_ns.values() if w is not None]
    return sum(waits) if waits else None


def longest_wait(operation: Operation) -> tuple[int, int] | None:
    """(rank, ns) of the longest wait, or None where waits are not known."""
    waits = [(w, -rank) for rank, w in operation.wait_ns.items() if w is not None]
    if not waits:
        return None
    wait, rank = max(waits)
    return -rank, wait


def op_words(op: str) -> str:
    """``all_to_all`` as people write it."""
    return {"send_recv": "send and receive", "unknown": "operation not known"}.get(op, op.replace("_", "-"))


def size_words(operation: Operation) -> str:
    """Size, marked where it is only a bound."""
    if operation.bytes is None or operation.bytes_known == "unknown":
        return NOT_KNOWN
    return f"≤ {size(operation.bytes)}" if operation.bytes_known == "upper_bound" else size(operation.bytes)


def transfer_words(operation: Operation) -> str:
    """Time of moving the data: known, a bound, or not known."""
    if operation.transfer_ns is not None:
        return time(operation.transfer_ns)
    return NOT_KNOWN if operation.transfer_upper_ns is None else f"≤ {time(operation.transfer_upper_ns)}"


def why_unsplit(operation: Operation) -> str:
    """Why waits are not known: one-sided, or ranks missing; empty where they are known."""
    if operation.transfer_ns is not None:
        return ""
    if operation.one_sided:
        return "one-sided"
    if operation.n is not None and operation.n_present < operation.n:
        return f"{operation.n_present} of {operation.n} ranks"
    return "not matched"


def detail(operation: Operation, facts: Facts) -> str:
    """Second line of an operation: what it carries, its group and step where there are several, a note on capture start."""
    groups = {o.group for o in facts.comm.operations}
    steps = {o.step for o in facts.comm.operations}
    notes = [label_words(operation.label)] if operation.label else []
    if len(groups) > 1 and operation.group:
        notes.append(group_words(operation.group))
    if len(steps) > 1:
        notes.append("no single step" if operation.step is None else f"step {operation.step}")
    if operation.capture_start:
        notes.append("start of the capture")
    return ", ".join(notes)


def label_words(label: str) -> str:
    """The name of a range with its tags as words: ``dispatch backward#phase=backward#layer=blocks.4`` is
    ``dispatch backward, blocks.4``.
    """
    name, *tags = label.split("#")
    if not all("=" in tag for tag in tags):
        return label
    values = [tag.partition("=")[2] for tag in tags]
    return ", ".join([name, *(value for value in values if value and value not in name)])


def group_words(group: str) -> str:
    """``0,1,2,3`` as ``ranks 0 to 3``; a name stays a name."""
    members = group.split(",")
    if all(m.isdigit() for m in members):
        return named("rank", [int(m) for m in members])
    return f"group {group}"


def participants(operation: Operation, culprits: frozenset[int] = frozenset()) -> list[tuple[int, str]]:
    """Ranks to draw, with a word: all up to 16; above, shortest, median, longest, last, culprits; at most eight."""
    ranks = sorted(operation.dur_ns)
    if len(ranks) <= MANY:
        return [(rank, "") for rank in ranks]
    by_time = sorted(ranks, key=lambda r: operation.dur_ns[r])
    picks = {by_time[0]: "shortest", by_time[len(by_time) // 2]: "median", by_time[-1]: "longest"}
    others = [operation.last_rank, *sorted(culprits)]
    for rank in others:
        if rank is not None and rank in operation.dur_ns:
            picks.setdefault(rank, "last" if rank == operation.last_rank else "culprit")
    return list(picks.items())[:8]

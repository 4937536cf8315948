"""Rules about jobs that stand still: who never came, and who asked for something else."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.analyse.hangs import HangResult, Stuck
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named
from dtprof.protocols import Lens

_TIMES = (
    "From the state and order of operations, as each rank had recorded them. Dumps of a running job that were written at "
    "different instants can look alike: is the job standing still?"
)


class MissingRank:
    """Ranks wait in an operation that another rank never entered."""

    id = "hang.missing_rank"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs operations with their state (flight-recorder dumps); silent where all ranks have got equally far."""
        result: HangResult = study.result("hangs")
        if not result.culprits or result.mismatches:
            return
        first = result.roots[0] if result.roots else result.stuck[0]
        who, word = named("rank", result.culprits), f"{first.op.replace('_', '-')} {first.seq if first.seq is not None else ''}"
        waiting = sorted({r for s in result.stuck for r in s.waiting} - set(result.culprits))
        lost = [r for r in result.culprits if r not in result.in_nothing]
        if result.circle:
            title = f"{who} wait for each other: operations of several groups are entered in different orders"
            why = f"each of {who} waits in an operation that another of them enters only after its own"
            remedy = "issue operations of different groups in one order on all ranks"
        else:
            title = f"{who} never entered {word.strip()} of {first.name}, and {counted(len(waiting), 'rank')} wait"
            why = f"{named('rank', first.waiting)} entered {word.strip()} of {first.name}; {_where(first, result)}"
            remedy = f"look at what {who} does there: an exception, a branch that others take, fewer batches, a stalled read"
            if lost:
                remedy = f"look at the host of {named('rank', lost)}: no dump of it means that it died or cannot write"
        yield Finding(
            rule=self.id,
            severity="high",
            title=title,
            ranks=result.culprits,
            steps=(),
            seconds_per_step=None,
            evidence=(
                *(Evidence(_sentence(s), s.events) for s in result.stuck[:6]),
                *(Evidence(f"Rank {r} was last in: {result.stacks[r]}.") for r in result.culprits if r in result.stacks),
                Evidence(_TIMES),
            ),
            why=why,
            next=remedy,
            apply="py-spy dump --pid of that process, or torch's debug level (TORCH_DISTRIBUTED_DEBUG=DETAIL) in the next run",
            verify="run again with TORCH_FR_BUFFER_SIZE set: all ranks reach the same operation",
        )


class Mismatched:
    """Ranks issued different operations as the same one."""

    id = "hang.mismatched"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs sequence numbers; the odd ones out are the ranks whose operation fewest issued."""
        result: HangResult = study.result("hangs")
        for m in result.mismatches[:1]:
            kinds = sorted(set(m.issued.values()), key=lambda k: sum(v == k for v in m.issued.values()))
            odd = tuple(r for r, kind in m.issued.items() if kind == kinds[0])
            told = "; ".join(f"{named('rank', [r for r, k in m.issued.items() if k == kind])}: {kind}" for kind in kinds)
            yield Finding(
                rule=self.id,
                severity="high",
                title=f"Operation {m.seq} of {m.name} is not the same on all ranks: {named('rank', odd)} issued {kinds[0]}",
                ranks=odd,
                steps=(),
                seconds_per_step=None,
                evidence=(Evidence(f"As operation {m.seq} of {m.name} they issued: {told}.", m.events),),
                why="ranks have taken different paths: what one sends is not what the others expect",
                next=f"find the branch that {named('rank', odd)} takes before operation {m.seq}: conditional layers, unused "
                "parameters, batches of another shape",
                apply="TORCH_DISTRIBUTED_DEBUG=DETAIL compares operations before they run and names the call",
                verify="run again: all ranks issue the same operations",
            )


def _where(stuck: Stuck, result: HangResult) -> str:
    told = [
        f"rank {r} last issued {stuck.last[r]} there and is in no operation"
        if stuck.last.get(r)
        else f"rank {r} issued nothing there"
        for r in stuck.absent
        if r in result.culprits
    ]
    told += [f"{named('rank', stuck.unrecorded)} left no dump"] if stuck.unrecorded else []
    return "; ".join(told)


def _sentence(stuck: Stuck) -> str:
    op = f"{stuck.op.replace('_', '-')} {stuck.seq if stuck.seq is not None else ''}".strip()
    missing = [f"{named('rank', stuck.absent)} did not"] if stuck.absent else []
    missing += [f"{named('rank', stuck.unrecorded)} left no dump"] if stuck.unrecorded else []
    last = ", ".join(f"rank {r}: {text}" for r, text in stuck.last.items() if text)
    return (
        f"{named('rank', stuck.waiting)[0].upper()}{named('rank', stuck.waiting)[1:]} entered {op} of {stuck.name} "
        f"(ranks {stuck.group}); {', '.join(missing)}.{' Last there: ' + last + '.' if last else ''}"
    )

"""Rules about mixtures of experts: who gets the tokens, and which are dropped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dtprof.advise.places import ranks_of, severity_of, step_ns
from dtprof.advise.predicted import in_words, notes_of, predicted
from dtprof.advise.rules.buckets import worth_it
from dtprof.analyse.moe import Layer, MoeResult
from dtprof.analyse.results import AccountingResult, Operation
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding
from dtprof.model.outcome import Outcome
from dtprof.numbers import count, counted, named, percent, size, time
from dtprof.protocols import Lens
from dtprof.run import Run

# the hottest expert has this many times the mean, or the busiest rank this many times the mean of the ranks
LEAST_RATIO, LEAST_RANK_RATIO = 1.5, 1.2
# without a cost in time an expert is worth naming from this ratio on
_STRIKING = 2.0
_LEAST_SHARE = 0.05
# assignments that are dropped: below this share they are the usual price of a capacity
LEAST_DROPPED, _MANY_DROPPED = 0.05, 0.20
# the usual capacity factor (Switch Transformer, Fedus et al. 2021, table 1)
_CAPACITY = 1.25


class ExpertBalance:
    """Some experts get many more tokens than others, and the ranks that have them are waited for."""

    id = "moe.expert_balance"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs ``moe_tokens``; silent where neither experts nor ranks are uneven. Its gain is that of even experts."""
        result: MoeResult = study.result("moe")
        whole = step_ns(study.result("accounting"))
        uneven = [x for x in result.layers if x.ratio >= LEAST_RATIO or x.rank_ratio >= LEAST_RANK_RATIO]
        if not uneven:
            return
        cost = sum(x.lost_ns for x in uneven)
        worst = max(uneven, key=lambda x: (x.lost_ns, x.ratio))
        if cost < _LEAST_SHARE * whole and worst.ratio < _STRIKING:
            return
        hot = max({x.hot for x in uneven}, key=lambda e: sum(x.tokens[e] for x in uneven if e in x.tokens))
        ranks = result.owners.get(hot, ())
        places = [x for x in uneven if x.hot == hot]
        share = sum(x.tokens[hot] for x in places) / sum(sum(x.tokens.values()) for x in places)
        even = predicted(study.run, [Edit("moe.balance", "even")]) if cost else None
        saving = even.saving() if even is not None and worth_it(even) else None
        told = f". Predicted with even experts: {in_words(even)}" if even is not None and saving is not None else ""
        lost = f"{time(cost)} per step waited for {named('rank', ranks)}" if cost and ranks else "no waiting that could be told"
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"Expert {hot} gets {percent(share)} of the tokens in {counted(len(places), 'layer')}, "
            f"{share * len(worst.tokens):.1f} times an even share: {lost}",
            ranks=ranks,
            steps=result.steps,
            seconds_per_step=cost / 1e9 if cost else None,
            evidence=(
                *_layers(uneven),
                Evidence("What is waited for it: all-to-alls of these layers which the rank with most tokens enters last, mean "
                         "over the ranks.", _rows(o for x in uneven for o in x.operations)),
                *(_predicted(study.run, even) if even is not None and saving is not None else ()),
            ),
            why=f"{named('rank', ranks)} computes expert {hot}, which {percent(share)} of the tokens choose; the others "
            "wait in "
            "the all-to-alls that follow",
            next="raise the auxiliary loss (or bias the router), cap experts with a capacity factor, or place hot experts on "
            f"ranks with cold ones{told}",
            apply="auxiliary loss of Switch Transformer (E sum f P) or a router bias without loss; capacity factor 1.25 "
            "drops what "
            "is beyond; replicate or move hot experts",
            verify="measure again: tokens per expert even, and less waiting in combine",
            share=cost / whole,
            edit={"moe.balance": "even"} if saving is not None else None,
            prediction=saving,
        )  # fmt: skip


class Capacity:
    """A capacity factor drops a considerable part of the assignments."""

    id = "moe.capacity"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs ``moe_dropped``; no price in time, but what keeping them would cost, where it can be predicted."""
        result: MoeResult = study.result("moe")
        accounting: AccountingResult = study.result("accounting")
        told = [x for x in result.layers if x.dropped is not None]
        worst = max(told, key=lambda x: x.dropped or 0.0, default=None)
        mean = sum(x.dropped or 0.0 for x in told) / len(told) if told else 0.0
        if worst is None or mean < LEAST_DROPPED:
            return
        experts = max(len(x.tokens) for x in told)
        every = predicted(study.run, [Edit("moe.capacity_factor", float(experts))])
        yield Finding(
            rule=self.id,
            severity="medium" if mean >= _MANY_DROPPED else "low",
            title=f"{percent(mean)} of the assignments of tokens to experts are dropped, most in {worst.name}: "
            f"{percent(worst.dropped)}",
            ranks=ranks_of(accounting),
            steps=result.steps,
            seconds_per_step=None,
            evidence=(
                Evidence(f"Dropped by layer: {', '.join(f'{x.name} {percent(x.dropped)}' for x in told[:8])}."),
                *_layers([worst]),
                *([Evidence(f"Predicted with nothing dropped: {in_words(every)}."), *notes_of(every)] if every else []),
            ),
            why="an expert takes only so many tokens of a rank, and what is beyond passes the layer unchanged: it learns "
            "nothing",
            next="a larger capacity factor, or a router that spreads tokens better (auxiliary loss)",
            apply="capacity factor times 1.25; it takes memory and time in proportion",
            verify="measure again: fewer tokens dropped; and compare losses",
        )


def _predicted(run: Run, even: Outcome) -> Iterator[Evidence]:
    """What even experts would make of the step, and a capacity instead, with what that drops."""
    yield Evidence(f"Predicted with even experts: {in_words(even)}.")
    yield from notes_of(even)
    capped = predicted(run, [Edit("moe.capacity_factor", _CAPACITY)])
    if capped is not None:
        yield Evidence(f"Predicted with a capacity factor of {_CAPACITY:g}: {in_words(capped)}; {capped.notes[-1]}.")


def _layers(layers: list[Layer]) -> Iterator[Evidence]:
    """The layers that lose most, three of them."""
    for x in sorted(layers, key=lambda x: (-x.lost_ns, -x.ratio))[:3]:
        tokens = ", ".join(f"{e}: {count(round(n))}" for e, n in list(x.tokens.items())[:16])
        ranks = ", ".join(f"rank {r}: {count(round(n))}" for r, n in list(x.by_rank.items())[:8])
        wire = "not known" if x.wire_bytes is None else f"{size(round(x.wire_bytes))} of a rank, without what it keeps"
        yield Evidence(
            f"{x.name}: tokens per step by expert {tokens}{'; by rank ' + ranks if ranks else ''}. Dispatch moves "
            f"{time(x.dispatch_ns)}, combine {time(x.combine_ns)}, other all-to-alls {time(x.other_ns)} per step; "
            f"{time(x.lost_ns)} is waited for the busiest rank. Bytes on the wire: {wire}.",
            _rows(x.operations),
        )


def _rows(operations: Iterable[Operation]) -> dict[int, tuple[int, ...]]:
    rows: dict[int, list[int]] = defaultdict(list)
    for o in operations:
        for part, event in o.events.items():
            rows[part].append(event)
    return {part: tuple(found) for part, found in rows.items()}

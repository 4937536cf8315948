"""Rules about input: a step that waits for it, and copies that the device waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dtprof.advise.places import per_rank, ranks_of, severity_of, step_ns, steps_of, who
from dtprof.advise.rules.ddp_flags import Joined
from dtprof.analyse.covers import PartView
from dtprof.analyse.input import InputResult
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import named, percent, size, time
from dtprof.protocols import Lens

_INPUT_SHARE = 0.05
# one rank's input counts as its own when it is this many times the median of the others
_APART = 2.0
# loading processes to begin with, where there are none
_WORKERS = 2


class InputStall:
    """The step waits for its input."""

    id = "input.stall"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Counts only input time in which the device had nothing to do; a prefetch that overlaps is no stall."""
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        stalled = per_rank(accounting, "idle_input_ns")
        if not stalled:
            return
        worst = max(stalled, key=lambda r: stalled[r])
        rest = [v for r, v in stalled.items() if r != worst]
        alone = bool(rest) and stalled[worst] > _APART * max(float(np.median(rest)), 1.0)
        cost = stalled[worst] if alone else float(np.mean(list(stalled.values())))
        if cost < _INPUT_SHARE * whole:
            return
        late = (worst,) if alone else tuple(sorted(stalled))
        waits = f"{who(late)} {'waits' if len(late) == 1 else 'wait'}"
        rows = {
            p.part: tuple(PartView(study.run, p.part).phase_rows("data").tolist())
            for p in accounting.parts
            if p.steps and (not alone or p.rank == worst or worst == -1 - p.part)
        }
        price = cost - float(np.median(rest)) if alone else cost
        evidence = [
            Evidence(
                "Idle inside the input ranges, per step: "
                + ", ".join(f"{who([r])} {time(v)}" for r, v in sorted(stalled.items())[:8])
                + ".",
                rows,
            )
        ]
        loads: InputResult = study.result("input")
        advice, edit = _advice(loads, alone)
        if loads.workers is not None:
            said = "the training process loads by itself" if loads.workers == 0 else f"{loads.workers} processes load per rank"
            evidence.append(Evidence(f"By {loads.source}, {said}."))
        yield Finding(
            rule=self.id,
            severity=severity_of(price / whole),
            title=f"{waits[0].upper()}{waits[1:]} {time(cost)} per step for input",
            ranks=tuple(r for r in late if r >= 0),
            steps=steps_of(accounting),
            seconds_per_step=price / 1e9,
            evidence=tuple(evidence),
            why=f"{waits} for the data loader {time(cost)} per step, {percent(cost / whole)} of it",
            next=advice,
            apply=f"num_workers={_WORKERS} or more where the DataLoader is made"
            if edit
            else "raise num_workers and prefetch_factor, or move preprocessing out of the training process",
            verify="dtprof verify RUN --rule input.stall -- CMD"
            if edit
            else "measure again: the input share of the step should vanish",
            share=price / whole,
            edit=edit,
        )


def _advice(loads: InputResult, alone: bool) -> tuple[str, dict[str, Any] | None]:
    """What to do, and the edit that does it: where nothing loads beside the steps, that comes first."""
    if loads.workers == 0:
        return (
            f"load beside the steps: num_workers is 0, so that every batch is made while the device waits; begin with "
            f"{_WORKERS}",
            {"loader.num_workers": _WORKERS},
        )
    if alone:
        return "more loader workers, prefetching, or cheaper preprocessing; check the storage of that host", None
    return "more loader workers (num_workers), prefetching (prefetch_factor), pinned memory, or cheaper preprocessing", None


class Pinning:
    """Batches are copied to the device from memory that is not page-locked, and nothing computes meanwhile."""

    id = "input.pinning"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs a trace of a device; the price is a bound, for a pinned copy takes time too, which more often is hidden."""
        accounting: AccountingResult = study.result("accounting")
        result: InputResult = study.result("input")
        copies, whole = result.pageable, step_ns(accounting)
        if copies is None or copies.exposed_ns < _INPUT_SHARE * whole:
            return
        moved = f", {size(round(copies.bytes))}" if copies.bytes else ""
        unpinned = " The loaders do not pin memory." if result.pinned is False else ""
        edit = {"loader.pin_memory": True} if result.pinned is False else None
        yield Finding(
            rule=self.id,
            severity=severity_of(copies.exposed_ns / whole),
            title=f"Copies from pageable memory hold the device up for {percent(copies.exposed_ns / whole)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=copies.exposed_ns / 1e9,
            evidence=(
                Evidence(
                    f"{copies.copies:.3g} copies per step{moved} from pageable memory; {time(copies.exposed_ns)} of them while "
                    f"nothing computes.{unpinned}",
                    copies.rows,
                ),
            ),
            why="a copy from pageable memory goes through a buffer of the driver, at a fraction of the link, and the host "
            "waits "
            "for it",
            next="pin_memory=True in the DataLoader and .to(device, non_blocking=True), so that the copy runs beside computing",
            apply="DataLoader(…, pin_memory=True); batch.to(device, non_blocking=True)",
            verify="measure again: the copies should be called Pinned and lie under compute",
            share=copies.exposed_ns / whole,
            bound=True,
            edit=edit,
        )


class Uneven:
    """Some ranks run out of data before the others."""

    id = "input.uneven"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Counts the steps of sessions that ended by themselves, in a run of one attempt; a rank that was killed is no case.

        Silent where ``ddp.join`` has seen the operations that such a rank shadows.
        """
        run = study.run
        if any(Joined().find(study)):
            return
        if run.format != "dtprof" or len({p.attempt for p in run.parts}) != 1 or len(run.parts) != len(run.ranks):
            return
        if any(p.extra.get("ended_ns") is None for p in run.parts):
            return
        counts = {p.rank: len(run.table("steps", p.ordinal)) for p in run.parts if p.rank is not None}
        most = max(counts.values(), default=0)
        short = tuple(sorted(rank for rank, steps in counts.items() if steps < most))
        if not short or len(counts) != (run.world_size or len(counts)):
            return
        missing, whole = sum(most - counts[r] for r in short), most * len(counts)
        listed = ", ".join(f"rank {r}: {counts[r]} steps" for r in short[:8])
        yield Finding(
            rule=self.id,
            severity="medium" if missing >= _INPUT_SHARE * whole else "low",
            title=f"{named('rank', short)[0].upper()}{named('rank', short)[1:]} ran out of data: {missing} of {whole} "
            f"rank-steps "
            "computed nothing",
            ranks=short,
            steps=(),
            seconds_per_step=None,
            evidence=(Evidence(f"{listed}; the others {most}."),),
            why="the data is not divided evenly: with Join such a rank only takes part in the others' collectives, without "
            "it the "
            "others wait until a timeout ends the job",
            next="divide evenly: DistributedSampler pads or drops (drop_last=True); for streams agree on a number of steps",
            apply="DistributedSampler(dataset, drop_last=True), or a fixed number of steps per epoch",
            verify="all ranks report as many steps",
        )

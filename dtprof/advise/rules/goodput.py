"""Rules about time that is no training: saves in the step, how often they are written, what restarts cost."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import severity_of
from dtprof.analyse.checkpoint import CheckpointResult
from dtprof.analyse.goodput import GoodputResult
from dtprof.catalogue.goodput import daly, goodput, mtbf_limits
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, percent, seconds, time
from dtprof.protocols import Lens
from dtprof.run import Run

_LEAST_SHARE = 0.05
# saves are in the job's own hands: less of the time is worth a low finding
_SAVING_SHARE = 0.02
_LEAST_SAVES = 2
# ranks are named from this share of the longest save on
_NAMED_SHARE = 0.5
# another interval is advised from this gain in goodput on, for every plausible rate of failures
_LEAST_GAIN, _LEVEL = 0.03, 0.9


class CheckpointStall:
    """Training stands still while a checkpoint is written."""

    id = "checkpoint.stall"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs two saves. The price is the save of the slowest rank over the steps from one to the next."""
        result: CheckpointResult = study.result("checkpoint")
        worst, every = result.worst, result.every
        if worst is None or every is None or result.step_ns is None or len(worst.steps) < _LEAST_SAVES:
            return
        cost = worst.usual_ns / every
        share = cost / (cost + result.step_ns)
        if share < _SAVING_SHARE:
            return
        ranks = tuple(s.rank for s in result.saves if s.usual_ns >= _NAMED_SHARE * worst.usual_ns)
        others = [s for s in result.saves if s.rank not in ranks]
        listed = ", ".join(f"rank {s.rank}: {time(s.usual_ns)}" for s in sorted(result.saves, key=lambda s: -s.usual_ns)[:8])
        alone = f", while {'it alone writes' if len(ranks) == 1 else 'they write'} and the others wait" if others else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"A checkpoint holds training up for {time(worst.usual_ns)} every {every:.3g} steps on "
            f"{named('rank', ranks)}",
            ranks=ranks,
            steps=worst.steps,
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"{counted(len(worst.steps), 'save')} in steps {', '.join(map(str, worst.steps[:8]))}: {listed} in the "
                    f"middle."
                ),
                Evidence(
                    "Timed in the ranges of phase checkpoint."
                    if worst.marked
                    else f"Nothing marks the save: it is what those steps take longer than the usual {time(result.step_ns)}."
                ),
            ),
            why=f"{named('rank', ranks)} {'saves' if len(ranks) == 1 else 'save'} inside the step, "
            f"{time(worst.usual_ns)} each time{alone}",
            next="write beside the steps that follow: DCP's async_save copies the state and returns; or save less often "
            "(checkpoint.interval says how often, once a failure has been seen)",
            apply="torch.distributed.checkpoint.async_save(…, async_checkpointer_type=AsyncCheckpointerType.PROCESS); every "
            "rank "
            "writing its own shard",
            verify="measure again: the phase checkpoint should shrink to the time of a copy",
            share=share,
        )


class CheckpointInterval:
    """Checkpoints are written much more, or much less often than the failures of this job call for."""

    id = "checkpoint.interval"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs two saves and a restart: without one nobody knows how often the job fails, and it abstains.

        From few failures their rate is known within wide limits; the advice must hold at both of them.
        """
        saves: CheckpointResult = study.result("checkpoint")
        good: GoodputResult = study.result("goodput")
        worst, every, step = saves.worst, saves.every, saves.step_ns
        if worst is None or every is None or step is None or not good.restarts or worst.usual_ns <= 0:
            return
        save_s, interval_s, wall_s = worst.usual_ns / 1e9, every * step / 1e9, good.wall_ns / 1e9
        restart_s = good.shares()["restart"] * wall_s / good.restarts
        mtbf_s = wall_s / good.restarts
        limits = (*mtbf_limits(wall_s, good.restarts, _LEVEL), mtbf_s)
        kept = {m: (goodput(interval_s, save_s, m, restart_s), goodput(daly(save_s, m), save_s, m, restart_s)) for m in limits}
        if min(best - now for now, best in kept.values()) < _LEAST_GAIN:
            return
        now, best = kept[mtbf_s]
        wanted, often = daly(save_s, mtbf_s), daly(save_s, mtbf_s) > interval_s
        steps = max(round(wanted / (step / 1e9)), 1)
        range_ = sorted(max(round(daly(save_s, m) * 1e9 / step), 1) for m in limits[:2])
        cost = step * (1 / now - 1 / best) if now > 0 else None
        yield Finding(
            rule=self.id,
            severity=severity_of(best - now),
            title=f"Checkpoints every {every:.3g} steps are too {'frequent' if often else 'rare'}: every {steps} would keep "
            f"{percent(best)} of the time for training instead of {percent(now)}",
            ranks=(),
            steps=worst.steps,
            seconds_per_step=None if cost is None else cost / 1e9,
            evidence=(
                Evidence(
                    f"A save takes {seconds(save_s)}, {seconds(interval_s)} of training lie between two, and the job failed "
                    f"{counted(good.restarts, 'time')} in {seconds(wall_s)}; a restart takes {seconds(restart_s)}."
                ),
                Evidence(
                    f"The mean time between failures is then {seconds(limits[0])} to {seconds(limits[1])} (Garwood's limits at "
                    f"{percent(_LEVEL)}), and the best interval {range_[0]} to {range_[1]} steps (Daly 2006)."
                ),
            ),
            why=f"{'saving' if often else 'what a failure repeats'} takes more than it has to: the best interval for these "
            f"saves and "
            f"failures is {seconds(wanted)}",
            next=f"save every {steps} steps; and see what fails",
            apply=f"the job's own option: every {steps} steps",
            verify="the goodput of the next run that lasts as long",
            share=best - now,
            bound=True,
        )


class RestartCost:
    """Restarts, and the steps that they repeat, take a good part of the run."""

    id = "training.restart"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs a run of several attempts. The price is spread over the steps that were kept."""
        good: GoodputResult = study.result("goodput")
        shares = good.shares()
        if not good.restarts or not shares or (share := shares["restart"] + shares["lost"]) < _LEAST_SHARE:
            return
        restart, lost = (shares[key] * good.wall_ns for key in ("restart", "lost"))
        kept = max(r.steps for r in good.ranks)
        first = restart >= lost
        times = counted(good.restarts, "restart")
        repeated = f"{time(lost)} for {counted(good.lost_steps, 'step')} that had to be repeated"
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"{times} cost {percent(share)} of the run: {time(restart)} to start again, "
            f"{repeated if good.lost_steps else 'no step had to be repeated'}",
            ranks=_ended_abruptly(study.run),
            steps=(),
            seconds_per_step=(restart + lost) / max(kept, 1) / 1e9,
            evidence=(
                Evidence(
                    f"{time(good.wall_ns)} in {good.restarts + 1} attempts, {counted(kept, 'step')} kept; mean of the ranks."
                ),
            ),
            why="most of it is starting again: noticing, meeting, loading the checkpoint, compiling"
            if first
            else "most of it is training that no checkpoint had kept",
            next="look at what a start does: imports, compile caches, reading the checkpoint on every rank"
            if first
            else "save more often, or beside the steps (async_save); see checkpoint.interval",
            apply="keep compile caches between attempts (TORCHINDUCTOR_CACHE_DIR); load shards in parallel"
            if first
            else "a shorter interval between checkpoints",
            verify="the goodput of the next run that is restarted",
            share=share,
        )


def _ended_abruptly(run: Run) -> tuple[int, ...]:
    """Ranks whose process left no end in an attempt that others ended in order; () where all or none did."""
    last = max(p.attempt for p in run.parts)
    ended = {(p.rank, p.extra.get("ended_ns") is not None) for p in run.parts if p.attempt < last and p.rank is not None}
    if not any(in_order for _, in_order in ended):
        return ()
    return tuple(sorted({rank for rank, in_order in ended if not in_order}))

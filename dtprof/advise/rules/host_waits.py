"""Rules about a host that stops: for garbage collection, or until the device has done everything."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.host import HostResult
from dtprof.analyse.results import AccountingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, percent, time
from dtprof.protocols import Lens

_LEAST_SHARE, _LEAST_GC_NS = 0.05, 1e6
# steps in which a rank collects
_LEAST_AGAIN = 3
# ranks are named from this share of the longest collections on
_NAMED_SHARE = 0.5


class GarbageCollection:
    """Python collects garbage in the middle of steps."""

    id = "host.gc"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs our host collector, and collections in three steps or more: one tells nothing of the next steps. In every step
        the rank that collects longest counts: the others wait for it.
        """
        result: HostResult = study.result("host")
        gc = result.gc
        if gc is None or gc.again < _LEAST_AGAIN or gc.joint_ns < max(_LEAST_SHARE * gc.step_ns, _LEAST_GC_NS):
            return
        most = max(gc.per_rank.values())
        ranks = tuple(rank for rank, ns in gc.per_rank.items() if ns >= _NAMED_SHARE * most)
        share = gc.joint_ns / gc.step_ns
        listed = ", ".join(f"rank {r}: {time(ns)}" for r, ns in sorted(gc.per_rank.items(), key=lambda i: -i[1])[:8])
        apart = gc.joint_ns > 1.2 * most
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"Garbage collection on {named('rank', ranks)} takes {time(gc.joint_ns)} of a step",
            ranks=ranks,
            steps=gc.steps,
            seconds_per_step=gc.joint_ns / 1e9,
            evidence=(
                Evidence(f"Collections of at least one object generation, per step: {listed}; over {len(gc.steps)} steps."),
                Evidence(
                    f"The ranks collect in different steps, and each time the others wait: {time(gc.joint_ns)} per step "
                    f"together."
                    if apart
                    else "Timed by Python's own callbacks; in each step the rank that collects longest counts."
                ),
            ),
            why=f"Python stops {named('rank', ranks)} for {time(gc.joint_ns)} per step to look for garbage, and whoever is "
            "reduced with it waits",
            next="collect by hand: gc.disable() before the loop and gc.collect() on all ranks in the same step, every few "
            "hundred steps; gc.freeze() once everything has been built",
            apply="gc.collect(); gc.freeze(); gc.disable() before the loop, then gc.collect(1) every N steps on all ranks "
            "at once",
            verify="measure again: the metric gc_time should vanish from the steps between; watch resident memory",
            share=share,
        )


class Synchronising:
    """Calls that wait until the device has done everything, so that it runs dry behind them."""

    id = "host.sync"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only on devices; the price is a bound, for some of the idle time is the host's own work and would stay."""
        result: HostResult = study.result("host")
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        cost = sum(stall.idle_ns for stall in result.stalls)
        if not result.stalls or cost < _LEAST_SHARE * whole:
            return
        worst = [s for s in result.stalls if s.idle_ns >= 0.05 * cost][:5]
        lines = tuple(
            Evidence(
                f"{s.call} {f'in {s.by}' if s.by else 'outside any operator'}: the device ran dry in "
                f"{counted(s.count, 'call')}, "
                f"and was then idle for {time(s.idle_ns)} per step.",
                s.rows,
            )
            for s in worst
        )
        where = f"{worst[0].call} in {worst[0].by}" if worst[0].by else worst[0].call
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"The host waits for the device, and the device then for the host: {percent(cost / whole)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=lines,
            why=f"{where} returns only when the device is empty, and until the next launch it has nothing to do",
            next="keep values on the device: no .item(), .cpu(), print or if on a tensor inside the step; read losses every N "
            "steps; torch.cuda.set_sync_debug_mode('warn') names the lines",
            apply="detach() and read later, copy with non_blocking=True into pinned memory, torch.where instead of if, fixed "
            "sizes instead of nonzero and masks",
            verify="measure again: the idle time before launches should fall by up to this much",
            share=cost / whole,
            bound=True,
        )

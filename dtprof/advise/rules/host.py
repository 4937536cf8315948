"""Rules about a device that waits for the host to launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import per_rank, ranks_of, severity_of, step_ns, steps_of, who
from dtprof.analyse.covers import PartView
from dtprof.analyse.kernels import SHORT_NS
from dtprof.analyse.results import AccountingResult, KernelResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import count, interval, percent, time
from dtprof.protocols import Lens

_LAUNCH_SHARE = 0.15
# a device that computes less than this share of the step has room for a larger batch
_MOSTLY_FREE = 0.5
_SYNCHRONISING = ("Synchronize",)


class LaunchBound:
    """The device runs dry because the next operation has not been launched."""

    id = "host.launch_bound"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only for device jobs; abstains where launches without kernels make idle time unreliable."""
        accounting: AccountingResult = study.result("accounting")
        kernels: KernelResult = study.result("kernels")
        if not accounting.on_device or any(p.unreliable for p in accounting.parts):
            return
        accounting = AccountingResult(tuple(p for p in accounting.parts if p.steps and p.steps[0].on_device), True)
        whole = step_ns(accounting)
        idle = per_rank(accounting, "idle_host_ns")
        if not idle or (cost := float(np.mean(list(idle.values())))) < _LAUNCH_SHARE * whole:
            return
        number, short = kernels.kernels, kernels.short
        busy = float(np.mean(list(per_rank(accounting, "compute_ns").values())))
        blocked = _blocked(study)
        rows = {p.part: tuple(PartView(study.run, p.part).main_rows.tolist()) for p in accounting.parts}
        evidence = [
            Evidence(f"{_range(idle)} per rank and step pass between the end of the last work and"
                     " the return of the next launch.", rows),
            Evidence(f"{count(number)} kernels on {who(idle)}; {count(short)} {'is' if short == 1 else 'are'} "
            f"shorter than {time(SHORT_NS)}."
                     f" All compute of a rank is {time(busy)} per step."),
        ]  # fmt: skip
        if blocked > 0.1 * cost:
            evidence.append(Evidence(f"The host spends {time(blocked)} per rank and step in calls that wait for the device."))
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{'The device runs' if len(idle) == 1 else 'The devices run'} dry: "
            f"for {percent(cost / whole)} of the step no operation has been launched",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=tuple(evidence),
            why=f"the host launches too slowly: {count(number)} kernels, {percent(kernels.short_share)} "
            f"of them shorter than {time(SHORT_NS)}"
            if (kernels.short_share or 0) > 0.5
            else "the host is busy or blocked between launches",
            next="launch less: CUDA graphs around forward and backward, torch.compile(mode='reduce-overhead')"
            + (", or a larger batch" if busy < _MOSTLY_FREE * whole else ""),
            apply="CUDA graphs or torch.compile(mode='reduce-overhead'); remove calls that synchronise"
            + ("; a larger batch costs the device little here" if busy < _MOSTLY_FREE * whole else ""),
            verify="measure again with the change: the idle time before launches should fall",
            share=cost / whole,
            bound=True,
        )


def _range(spent: dict[int, float]) -> str:
    return interval(min(spent.values()), max(spent.values())) if len(spent) > 1 else time(next(iter(spent.values())))


def _blocked(study: Lens) -> float:
    """Host time in synchronising calls, ns per part and step."""
    spent, steps = 0, 0
    for part in study.run.parts:
        view = PartView(study.run, part.ordinal)
        names = view.events.values("name")
        lut = np.array([any(s in n for s in _SYNCHRONISING) for n in names] + [False], bool)
        calls = lut[view.events["name"]] & view.events.is_("kind", "runtime") & (view.events["step"] >= 0)
        spent += int(view.events["dur"][calls].sum())
        steps += int(study.run.table("steps", part.ordinal)["captured"].sum())
    return spent / steps if steps else 0.0

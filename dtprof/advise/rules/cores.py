"""Rules about the cores of the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import severity_of, step_ns, steps_of
from dtprof.analyse.results import AccountingResult, settled
from dtprof.findings import Evidence, Finding
from dtprof.numbers import named, percent, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.10
# only ranks that wait at least this share of the worst one are named
_NAMED_SHARE = 0.5


class NoCore:
    """Training threads that could run but have no core: the host runs more than it has cores for."""

    id = "host.no_core"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs our host collector on Linux; the price is an upper bound, for part of the waiting may be hidden."""
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        lost: dict[int, float] = {}
        for part in accounting.parts:
            table = study.run.table("metrics", part.part)
            lasts = {s.step: s.dur_ns for s in settled(part.steps)}
            mine = table.is_("metric", "run_delay") & np.isin(table["step"], list(lasts))
            if part.rank is not None and mine.any():
                # a reading also covers what dtprof does between two steps
                told = zip(table["step"][mine].tolist(), table["value"][mine].tolist(), strict=True)
                lost[part.rank] = float(np.mean([min(ns, lasts[step]) for step, ns in told]))
        if not lost or (worst := max(lost.values())) < _LEAST_SHARE * whole:
            return
        ranks = tuple(sorted(r for r, ns in lost.items() if ns >= _NAMED_SHARE * worst))
        cost = float(np.mean([lost[r] for r in ranks]))
        listed = ", ".join(f"rank {r}: {time(ns)}" for r, ns in sorted(lost.items(), key=lambda i: -i[1])[:8])
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"The training threads of {named('rank', ranks)} wait for a core during {percent(cost / whole)} of the step",
            ranks=ranks,
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(f"Ready to run but without a core, per step: {listed}."),
                Evidence(
                    "Measured by the operating system's scheduler for the training thread; other threads are not counted."
                ),
            ),
            why=f"more threads want to run than the host has cores: {named('rank', ranks)} could run but had to wait "
            f"{time(cost)} per step",
            next="stop other processes on that host, pin the ranks to cores of their own, or give each rank fewer threads",
            apply="fewer processes or threads per host (OMP_NUM_THREADS, data-loader workers), or pinning (taskset, numactl)",
            verify="measure again: the time without a core should vanish",
            share=cost / whole,
            bound=True,
        )

"""Rules about communication that nothing needs, or that goes by the wrong backend."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from dtprof import intervals
from dtprof.advise.places import ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import AccountingResult, CommResult, settled
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, percent, size, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05


class Barrier:
    """A barrier in every step."""

    id = "comm.barrier"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Every settled step must have one; the price is the barrier itself, since waiting in it only moves elsewhere."""
        accounting: AccountingResult = study.result("accounting")
        comm: CommResult = study.result("comm")
        steps = set(steps_of(accounting))
        found = [o for o in comm.operations if o.op == "barrier" and _step_of(study, o.events) in steps]
        if len(steps) < 2 or {_step_of(study, o.events) for o in found} != steps:
            return
        whole = step_ns(accounting)
        told = [o.transfer_ns for o in found if o.transfer_ns is not None]
        cost = sum(told) / len(steps) if told else None
        waits = [w for o in found for w in o.wait_ns.values() if w is not None]
        rows: dict[int, list[int]] = defaultdict(list)
        for o in found:
            for part, event in o.events.items():
                rows[part].append(event)
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole) if cost is not None else "low",
            title=f"Every step has {counted(round(len(found) / len(steps)), 'barrier')}, which training does not need",
            ranks=ranks_of(accounting),
            steps=tuple(sorted(steps)),
            seconds_per_step=None if cost is None else cost / 1e9,
            evidence=(
                Evidence(
                    f"{counted(len(found), 'barrier')} in {counted(len(steps), 'step')}: {time(cost)} per step for the barrier "
                    f"itself; ranks wait {time(sum(waits) / len(waits)) if waits else 'an unknown time'} in each.",
                    {part: tuple(events) for part, events in rows.items()},
                ),
                Evidence("That waiting is for late ranks: without the barrier they are waited for in the next collective."),
            ),
            why="a barrier makes all ranks wait until the last one has arrived, and keeps them from running ahead",
            next="remove it: collectives order the ranks by themselves, and a measurement needs a synchronize of the device",
            apply="remove dist.barrier() from the loop; keep it around what only one rank does, such as writing a file",
            verify="measure both in turn: the same losses without it",
            share=None if cost is None else cost / whole,
            bound=True,
        )


def _step_of(study: Lens, events: dict[int, int]) -> int:
    part, event = next(iter(events.items()))
    return int(study.run.table("events", part)["step"][event])


class GlooOnCuda:
    """Tensors of a GPU job that travel by gloo: down to the host, over its sockets, and up again."""

    id = "comm.gloo_on_cuda"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Silent where the devices compute meanwhile: a gloo group beside NCCL for objects and checkpoints is usual."""
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        costs: dict[int, float] = {}
        rows: dict[int, tuple[int, ...]] = {}
        sizes = 0
        for account in accounting.parts:
            view = PartView(study.run, account.part)
            steps = settled(account.steps)
            if not view.on_device or not steps or account.rank is None:
                continue
            names = view.events.values("name")
            ours = view.host_comm_rows[np.isin(view.events["step"][view.host_comm_rows], [s.step for s in steps])]
            ours = np.array([r for r in ours.tolist() if names[int(view.events["name"][r])].startswith("gloo:")], np.int64)
            idle = intervals.subtract(view.cover(ours), intervals.join(view.device_compute, view.device_copy))
            costs[account.rank] = intervals.total(idle) / len(steps)
            rows[account.part] = tuple(ours.tolist())
            comm = study.run.table("comm", account.part)
            mine = comm["bytes_in"][np.isin(comm["event"], ours)]
            sizes += int(mine[mine > 0].sum()) // len(steps)
        cost = float(np.mean(list(costs.values()))) if costs else 0.0
        if cost < _LEAST_SHARE * whole:
            return
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"{percent(cost / whole)} of the step the GPUs stand still while gloo sends over the hosts",
            ranks=tuple(sorted(costs)),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(
                    f"{counted(sum(map(len, rows.values())), 'operation')} by gloo in a job on devices"
                    + (f", {size(sizes // len(costs))} per rank and step" if sizes else "")
                    + f": {time(cost)} per step in which a device neither computes nor copies.",
                    rows,
                ),
            ),
            why="gloo copies tensors to the host and sends them through its sockets, while NCCL moves them from GPU to GPU",
            next="init_process_group('nccl'), or 'cpu:gloo,cuda:nccl' where host tensors are sent too",
            apply="dist.init_process_group(backend='cpu:gloo,cuda:nccl')",
            verify="measure again: communication kernels on the devices, and no gloo operations in the step",
            share=cost / whole,
        )

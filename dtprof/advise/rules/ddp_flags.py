"""Rules about DistributedDataParallel's other arguments, about Join, and about DataParallel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import ddp_models, ranks_of, severity_of, step_ns, steps_of, timed_steps
from dtprof.advise.predicted import in_words, notes_of, outcome, severity_of_saving
from dtprof.advise.rules.buckets import worth_it
from dtprof.analyse.results import AccountingResult
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding
from dtprof.numbers import counted, named, percent
from dtprof.protocols import Lens
from dtprof.run import Run

_LEAST_STEPS = 3


class StaticGraph:
    """The same parameters take part in every step, and DDP looks for them again and again; or it was told so and it is not."""

    id = "ddp.static_graph"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs our DDP collector and three watched steps, on all ranks that have it."""
        run = study.run
        models = {part: found[0] for part, found in ddp_models(run).items() if len(found) == 1}
        sets = {part: _by_step(run, part) for part in models}
        if not models or any(len(found) < _LEAST_STEPS for found in sets.values()):
            return
        same = all(len(set(found)) == 1 for found in sets.values())
        some = any(len(found[0]) < int(models[part].get("n_parameters", 0)) for part, found in sets.items())
        searched = all(m.get("find_unused_parameters") is True for m in models.values())
        told = all(m.get("static_graph") is True for m in models.values())
        ranks = tuple(sorted(p.rank for p in run.parts if p.ordinal in models and p.rank is not None))
        accounting: AccountingResult = study.result("accounting")
        if searched and not told and same and some:
            used = min(len(found[0]) for found in sets.values())
            total = int(next(iter(models.values())).get("n_parameters", 0))
            yield self._finding(
                accounting, ranks, "low",
                f"{counted(total - used, 'parameter')} of {total} get no gradient, the same ones in every step: "
                "static_graph=True "
                "spares the search",
                f"In {counted(min(map(len, sets.values())), 'step')} the same {used} parameters had gradients, on each rank.",
                "find_unused_parameters walks the graph in every step and reduces a number per parameter, to find the "
                "same each time",
                "DistributedDataParallel(model, static_graph=True)", {"ddp.static_graph": True},
            )  # fmt: skip
        elif told and not same:
            yield self._finding(
                accounting, ranks, "medium",
                "static_graph=True, but the parameters that get gradients change from step to step",
                "The sets of parameters with gradients differ between captured steps of one rank.",
                "DDP has learnt in the first step which gradients to wait for: others are not reduced, and ranks drift apart",
                "drop static_graph=True, and use find_unused_parameters=True", {"ddp.static_graph": False},
            )  # fmt: skip

    def _finding(
        self, accounting: AccountingResult, ranks: tuple[int, ...], severity: str, title: str, seen: str, why: str, remedy: str,
        edit: dict[str, bool],
    ) -> Finding:  # fmt: skip
        return Finding(
            rule=self.id, severity="low" if severity == "low" else "medium", title=title, ranks=ranks,
            steps=steps_of(accounting), seconds_per_step=None, evidence=(Evidence(seen),), why=why, next=remedy, apply=remedy,
            verify="measure both settings in turn; the losses stay the same", edit=edit,
        )  # fmt: skip


def _by_step(run: Run, part: int) -> list[frozenset[str]]:
    """Parameters with a gradient in each watched step."""
    table = run.table("grads", part)
    steps, names = table["step"].tolist(), table.text("parameter")
    found: dict[int, set[str]] = {}
    for step, name in zip(steps, names, strict=True):
        found.setdefault(step, set()).add(str(name))
    return [frozenset(found[s]) for s in sorted(found)]


class BucketView:
    """Gradients that are copied into buckets and back, where they could be views of them."""

    id = "ddp.bucket_view"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Predicted by the model of the run's DDP steps; silent where it gains too little or nothing can be predicted."""
        models = [m for found in ddp_models(study.run).values() for m in found]
        if not models or any(m.get("gradient_as_bucket_view") for m in models):
            return
        found = outcome(study.run, [Edit("ddp.gradient_as_bucket_view", True)])
        saving = found.saving() if found is not None else None
        if found is None or saving is None or not worth_it(found):
            return
        share = saving.seconds_per_step * 1e9 / (found.measured_ns or 1.0)
        accounting: AccountingResult = study.result("accounting")
        yield Finding(
            rule=self.id,
            severity=severity_of_saving(found),
            title=f"Gradients as views of their buckets are predicted to save {percent(share)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(f"Predicted without the copies into and out of the buckets: {in_words(found)}."),
                *notes_of(found),
            ),
            why="every gradient is copied into its bucket and back, which also keeps it twice in memory",
            next=f"gradient_as_bucket_view=True. Predicted: {in_words(found)}",
            apply="DistributedDataParallel(model, gradient_as_bucket_view=True); gradients must then not be detached in place",
            verify=f"dtprof verify RUN --rule {self.id} -- CMD, which measures both settings in pairs",
            edit={"ddp.gradient_as_bucket_view": True},
            prediction=saving,
        )


class DataParallelUsed:
    """torch.nn.DataParallel: one process for all GPUs."""

    id = "ddp.data_parallel"

    def find(self, study: Lens) -> Iterator[Finding]:
        """By the range that torch puts around its forward pass; it has no price, since DDP's step is another one."""
        accounting: AccountingResult = study.result("accounting")
        rows: dict[int, tuple[int, ...]] = {}
        devices = 0
        for part in study.run.parts:
            events, lanes = study.run.table("events", part.ordinal), study.run.table("lanes", part.ordinal)
            found = np.flatnonzero(events.is_("name", "DataParallel.forward"))
            if len(found):
                rows[part.ordinal] = tuple(found.tolist())
                devices = max(devices, len(set(lanes["device"][lanes["device"] >= 0].tolist())))
        if not rows:
            return
        many = devices > 1
        yield Finding(
            rule=self.id,
            severity="medium" if many else "low",
            title=f"DataParallel drives {counted(devices, 'GPU')} from one process"
            if devices
            else "DataParallel is in use, which drives all GPUs from one process",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(f"{counted(sum(map(len, rows.values())), 'range')} DataParallel.forward in "
                         f"{counted(len(rows), 'process', 'processes')}.", rows),
            ),
            why="it copies the model to every GPU in every step, gathers all outputs on one, and drives them all from one "
            "Python",
            next="DistributedDataParallel with one process per GPU",
            apply="torchrun --nproc_per_node=NUMBER_OF_GPUS, and DistributedDataParallel(model, device_ids=[local_rank])",
            verify="dtprof gate with two commands; the batch per process is the whole one divided by the GPUs",
        )  # fmt: skip


class Joined:
    """Ranks that run out of data before the others, and shadow their collectives (Join)."""

    id = "ddp.join"

    def find(self, study: Lens) -> Iterator[Finding]:
        """By operations that a rank takes part in after its last step; needs traces of those, or the DDP collector's count."""
        run = study.run
        steps = {p.ordinal: _last(run, p.ordinal) for p in run.parts if p.rank is not None}
        known = {part: found for part, found in steps.items() if found is not None}
        if len(known) < 2 or len({p.rank for p in run.parts}) < len(run.parts):
            return
        most = max(count for count, _ in known.values())
        short = {p: count for p, (count, end) in known.items() if count < most and len(_after(run, p, end))}
        if not short:
            return
        ranks = {p.ordinal: p.rank for p in run.parts}
        lost = sum(most - count for count in short.values())
        share = lost / (most * len(known))
        length = float(np.median(timed_steps(run) or [step_ns(study.result("accounting"))]))
        who = tuple(sorted(r for p in short if (r := ranks[p]) is not None))
        told = ", ".join(f"rank {ranks[p]} {count} and {most - count} in the others' shadow" for p, count in short.items())
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"{named('rank', who)[0].upper()}{named('rank', who)[1:]} {'runs' if len(who) == 1 else 'run'} out of data "
            f"early: {lost} of {most * len(known)} rank-steps compute nothing",
            ranks=who,
            steps=(),
            seconds_per_step=share * length / 1e9,
            evidence=(
                Evidence(
                    f"Of {counted(most, 'step')}: {told}. There it joins the others' collectives with zeros, and is not fast.",
                    {p: tuple(_after(run, p, known[p][1])) for p in short},
                ),
                Evidence("Without Join the others would wait for it in their next collective, until the group's timeout."),
            ),
            why=f"the data are not divided evenly: {told}",
            next="give all ranks the same number of batches: DistributedSampler (which pads), drop_last, or shards of one "
            "length",
            apply="DistributedSampler(dataset, drop_last=True); Join stays as a safety net",
            verify="measure again: all ranks have equally many steps",
            share=share,
        )


def _last(run: Run, part: int) -> tuple[int, int] | None:
    """(training steps, end of the last one in ns) of a part."""
    steps = run.table("steps", part)
    train = np.flatnonzero(~steps.is_("kind", "restart", "lost") & steps.known("host_dur"))
    return (len(train), int((steps["host_ts"] + steps["host_dur"])[train].max())) if len(train) else None


def _after(run: Run, part: int, end: int) -> list[int]:
    """Operations of all ranks that a part takes part in after its last step."""
    comm, events = run.table("comm", part), run.table("events", part)
    rows = comm["event"][comm.is_("op", "all_reduce", "reduce_scatter", "all_gather") & (comm["event"] >= 0)]
    found: list[int] = rows[events["ts"][rows] > end].tolist()
    return found

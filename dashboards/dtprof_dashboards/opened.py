"""A run that is open: its facts, those of ``dtprof report``, and what pages ask beyond them; kept while unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from string import punctuation
from typing import Any

import streamlit as st

from dtprof.advise.rules.comm_bandwidth import Reached, reached
from dtprof.analyse import study_of
from dtprof.analyse.results import ACCOUNTING, settled
from dtprof.edits import parse_edits
from dtprof.export.window import Span, cut
from dtprof.ingest import open_run
from dtprof.model.ddp.observe import Seen
from dtprof.model.ddp.observe import observe as observe_ddp
from dtprof.model.fsdp.observe import SeenFsdp
from dtprof.model.fsdp.observe import observe as observe_fsdp
from dtprof.model.offered import Offer, offers
from dtprof.model.outcome import Outcome
from dtprof.model.pipeline.observe import SeenPipeline, observe
from dtprof.model.whatif import what_if
from dtprof.numbers import count, listing
from dtprof.protocols import Lens
from dtprof.report.budget import BudgetRow, budget
from dtprof.report.charts.timeline import Timeline, timeline
from dtprof.report.facts import Facts
from dtprof.report.kept import facts_of
from dtprof.run import Run
from dtprof_dashboards import roofline
from dtprof_dashboards.listing import Entry
from dtprof_dashboards.memory_series import Series, series

# events that a page lets models replay, and the least steps of a larger run
MOST_REPLAYED, LEAST_STEPS = 80_000, 3
# runs that are kept open; each may take hundreds of MB
KEPT = 4
Watermark = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Opened:
    """One run with everything that was found out about it."""

    study: Lens
    facts: Facts

    @property
    def run(self) -> Run:
        """The run."""
        return self.facts.run

    @cached_property
    def rows(self) -> list[BudgetRow]:
        """The budget: one row per process that has steps."""
        return budget(self.facts)

    @cached_property
    def side_by_side(self) -> Timeline | None:
        """One step of every rank on one clock; None where no step is marked."""
        return timeline(self.facts)

    @cached_property
    def pipeline(self) -> SeenPipeline | str:
        """The pipeline steps, or why there are none."""
        return observe(self.run)

    @cached_property
    def ddp(self) -> Seen | str:
        """The DDP steps, or why there are none."""
        return observe_ddp(self.run)

    @cached_property
    def fsdp(self) -> SeenFsdp | str:
        """The FSDP2 steps of hosts, or why there are none."""
        if self.facts.accounting.on_device:
            return "units are told apart on hosts only"
        return observe_fsdp(self.run)

    @cached_property
    def offers(self) -> list[Offer]:
        """The edits that models of the run follow."""
        return offers(self.replayed[0])

    @cached_property
    def replayed(self) -> tuple[Run, str]:
        """What models replay, and a sentence where that is not all: of a large run on devices, steps in its middle."""
        steps = self.facts.settled_steps
        events = sum(len(self.run.table("events", p.ordinal)) for p in self.run.parts)
        if events <= MOST_REPLAYED or len(steps) <= LEAST_STEPS or not self.facts.accounting.on_device:
            return self.run, ""
        many = max(LEAST_STEPS, len(steps) * MOST_REPLAYED // events)
        mine = steps[(len(steps) - many) // 2 :][:many]
        told = f"replayed are steps {listing(mine)} of {len(steps)}, for the run has {count(events)} events"
        return cut(self.run, steps=Span(mine[0], mine[-1] + 1)), told

    @cached_property
    def bandwidth(self) -> dict[tuple[str, str], Reached | str]:
        """(operation, group) -> what it reaches of what its links allow, or why that is not known."""
        return reached(self.study)

    @cached_property
    def roofs(self) -> list[roofline.Reached]:
        """Kernels against the limits of the device; empty without its counters."""
        return roofline.reached(self.run)

    @cached_property
    def experts(self) -> list[tuple[int, str, int, float]]:
        """(step, layer, expert, tokens) of all processes, summed over them; empty where nothing was recorded."""
        sums: dict[tuple[int, str, int], float] = {}
        for part in self.run.parts:
            table = self.run.table("metrics", part.ordinal)
            rows = table.take(table.is_("metric", "moe_tokens") & table.known("expert"))
            columns = (rows["step"].tolist(), rows.text("layer"), rows["expert"].tolist(), rows["value"].tolist())
            for step, layer, expert, value in zip(*columns, strict=True):
                key = (step, layer or "", expert)
                sums[key] = sums.get(key, 0.0) + value
        return [(*key, value) for key, value in sorted(sums.items())]

    def result(self, name: str) -> Any:
        """The result of an analysis."""
        return self.study.result(name)


@st.cache_resource(max_entries=KEPT, show_spinner=False)
def read(path: Path, stamp: Watermark) -> Opened:
    """The run at ``path`` as it was at that watermark. Raises DtprofError where it cannot be opened."""
    return Opened(*facts_of(open_run(path)))


def opened(entry: Entry, stamp: Watermark) -> Opened:
    """The same for a page, which says meanwhile what it waits for, by its name."""
    # the text is Markdown, in which any punctuation may have a meaning and may be escaped
    plain = "".join(f"\\{c}" if c in punctuation else c for c in entry.label)
    with st.spinner(f"Reading {plain} …"):
        found: Opened = read(entry.path, stamp)
    return found


@st.cache_resource(max_entries=200, show_spinner="Predicting …")
def predicted(path: Path, stamp: Watermark, edits: tuple[str, ...], _run: Run) -> Outcome:
    """What these edits, as ``KEY=VALUE``, would make of the run. Raises InputError where they contradict each other."""
    return what_if(_run, parse_edits(edits))


@st.cache_resource(max_entries=100, show_spinner="Simulating …")
def simulated_parts(path: Path, stamp: Watermark, edits: tuple[str, ...], _outcome: Outcome) -> dict[str, float] | None:
    """The budget of the simulated run, mean ns of each accounting key; None where the model makes no run with steps."""
    if _outcome.make_run is None:
        return None
    study = study_of(_outcome.make_run())
    parts = [settled(p.steps) for p in study.result("accounting").parts if p.steps]
    if not parts:
        return None
    return {k: fmean(fmean(s.accounting[k] for s in steps) for steps in parts) for k in ACCOUNTING}


@st.cache_resource(max_entries=100, show_spinner=False)
def memory_over_time(path: Path, stamp: Watermark, part: int, _run: Run) -> Series | None:
    """Memory of one process over time, by category; None where it was not read often enough."""
    return series(_run, part)

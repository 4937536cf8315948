"""Plan: what other layouts would make of this run where its model is known, and of any preset on any cluster."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import streamlit as st

from dtprof.catalogue.hardware import GPUS
from dtprof.numbers import change, count, fixed, percent, seconds, size
from dtprof.plan.calibrated import calibration
from dtprof.plan.choices import Choices, choices, options
from dtprof.plan.memory.breakdown import Memory
from dtprof.plan.presets import MODELS
from dtprof.plan.rows import ports_of
from dtprof.plan.search import Candidate, Found, Wanted, search
from dtprof.plan.search.explain import megatron, named, neighbours, parts
from dtprof.plan.search.words import brief
from dtprof.plan.software import SOFTWARE, software
from dtprof.plan.spec import Cluster
from dtprof.plan.time.step import Estimator
from dtprof_dashboards import selection, show
from dtprof_dashboards.opened import Watermark
from dtprof_dashboards.show import Tile
from dtprof_dashboards.view import Page, View

THIS_RUN = "this run"
NOT_A_STEP = "none"
_NODE = 8
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# what is chosen at first: a model of rotary positions, which takes any length, and the length that most were trained with
_FIRST, _USUAL = "Llama 3 8B", 4096
_SEQUENCES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_MEMORY = ("parameters", "gradients", "optimizer", "activations", "transient", "communication", "fragmentation", "context")


_SHORT = (
    "Ranks by tp tensor, pp pipeline, cp context, ep expert and dp data parallelism; vpp: virtual stages of a rank; "
    "mb: sequences of a micro-batch."
)


@dataclass(frozen=True)
class Planned:
    """A search and what is told of it; ``now``: the run's own layout, None for presets."""

    wanted: Wanted
    found: Found
    rests: str
    bounds: tuple[float, float]
    terms: list[str]
    around: list[tuple[str, str, str]]
    now: Candidate | None = None


def render(view: View) -> None:
    """Draw the page."""
    show.title("Plan", view.meta)
    own = _own(str(view.path), view.stamp, view)
    left, right = st.columns([1, 3], gap="large")
    with left:
        show.markup("<h2>Plan for</h2>")
        names = [THIS_RUN, *MODELS] if isinstance(own, Choices) else list(MODELS)
        first = 0 if isinstance(own, Choices) else names.index(_FIRST)
        model = str(st.selectbox("Model", names, index=first, key=selection.widget_key("model")))
        asked = None if model == THIS_RUN else _asked(model)
    with right:
        if asked is None and isinstance(own, Choices):
            _draw(_of_run(str(view.path), view.stamp, own))
            _options(own)
            return
        if asked is not None:
            _draw(_of_preset(model, *asked))
        if isinstance(own, str):
            show.nothing(
                "This run gives no plan",
                f"{own[0].upper()}{own[1:]}.",
                "For a model and a cluster of your own:\ndtprof plan search SPEC.toml",
            )


def _asked(model: str) -> tuple[str, int, str, int, int]:
    """GPU, how many, software, tokens of a sequence, sequences of a step."""
    gpu = st.selectbox("GPU", [one.name for one in GPUS], index=_index("H100 SXM"), key=selection.widget_key("gpu"))
    gpus = st.selectbox("GPUs", _SIZES, index=_SIZES.index(64), key=selection.widget_key("gpus"))
    ran = st.selectbox("Software", list(SOFTWARE), key=selection.widget_key("software"))
    lengths = _lengths(MODELS[model].max_positions)
    usual = max(i for i, length in enumerate(lengths) if length <= _USUAL or i == 0)
    seq = st.selectbox("Tokens per sequence", lengths, index=usual, key=selection.widget_key("seq"))
    batch = st.selectbox("Sequences per step", _BATCHES, index=_BATCHES.index(256), key=selection.widget_key("batch"))
    return str(gpu), int(gpus), str(ran), int(seq), int(batch)


def _lengths(positions: int) -> list[int]:
    """Tokens of a sequence to choose from; a model with learned ``positions`` (0: none) takes no more than those."""
    return [n for n in _SEQUENCES if not positions or n <= positions] or [positions]


def _index(name: str) -> int:
    return next(place for place, one in enumerate(GPUS) if one.name == name)


@st.cache_resource(max_entries=8, show_spinner=False)
def _own(path: str, stamp: Watermark, _view: View) -> Choices | str:
    return choices(_view.facts.run)


@st.cache_resource(max_entries=8, show_spinner="searching layouts …")
def _of_run(path: str, stamp: Watermark, _own: Choices) -> Planned:
    own, layout = _own.own, _own.own.layout
    wanted = Wanted(
        own.model, own.cluster, own.software, layout.seq, layout.global_batch, precision=(layout.precision,),
        optimizer=layout.optimizer, gradient_dtype=layout.gradient_dtype, attention=layout.attention,
    )  # fmt: skip
    rests = f"this run’s own step; before that the model was {percent(_own.replay_error)} off"
    return _planned(wanted, _own.clock, rests, (1.0, 1.0), _own.now)


@st.cache_resource(max_entries=32, show_spinner="searching layouts …")
def _of_preset(model: str, gpu: str, gpus: int, ran: str, seq: int, batch: int) -> Planned:
    chosen = GPUS[_index(gpu)]
    fast = chosen.fast.gb_s if chosen.fast else 0.0
    cluster = Cluster(chosen, gpus, min(gpus, _NODE), max(chosen.memory_gb) * 10**9, fast, ports_of(chosen))
    precision = "bf16" if chosen.capability is None or chosen.capability >= 80 else "fp16"
    wanted = Wanted(MODELS[model], cluster, software(ran), seq, batch, precision=(precision,))  # type: ignore[arg-type]
    rests = calibration(wanted.model, cluster, wanted.software)
    clock = Estimator(wanted.model, cluster, wanted.software, rests.constants)
    return _planned(wanted, clock, rests.name, (rests.low, rests.high), None)


def _planned(wanted: Wanted, clock: Estimator, rests: str, bounds: tuple[float, float], now: Candidate | None) -> Planned:
    found = search(wanted, lambda _: clock)
    if found.best is None:
        return Planned(wanted, found, rests, bounds, [], [], now)
    around = [
        (one.what, NOT_A_STEP if one.seconds is None else seconds(one.seconds), one.why)
        for one in neighbours(wanted, found.best, clock)
    ]
    return Planned(wanted, found, rests, bounds, megatron(wanted, found.best, clock), around, now)


def _draw(plan: Planned) -> None:
    best = plan.found.best
    if best is None:
        would = [f"{text[0].upper()}{text[1:]}." for text in plan.found.mend]
        none = f"none of {count(plan.found.tried)} layouts fits {plan.wanted.model.name}"
        show.verdict(none if plan.found.tried else f"no layout of {plan.wanted.model.name} is possible there",
                     _nearest(plan.found), would)  # fmt: skip
        return
    against = ""
    if plan.now is not None:
        against = f", {change(best.seconds / plan.now.seconds - 1)} against {brief(plan.now.layout)} as it runs"
    show.verdict(f"the fastest layout that fits is {brief(best.layout)}: {seconds(best.seconds)} a step{against}",
                 " ".join(plan.terms))  # fmt: skip
    _tiles(plan, best)
    _layouts(plan, best)
    _where(best)
    rows = [list(one) for one in plan.around]
    show.section("One change at a time", "The others held.", show.table(["change", "step", "why"], rows, [1]))
    lost = [[miss.reason, count(miss.count), miss.nearest] for miss in plan.found.misses]
    sub = f"{count(plan.found.tried)} layouts were looked at. Counted by reason, each with the nearest miss."
    show.section("Why the others lose", sub, show.table(["reason", "layouts", "nearest"], lost, [1]))


def _nearest(found: Found) -> str:
    return "; ".join(miss.nearest for miss in found.misses[:2])


def _tiles(plan: Planned, best: Candidate) -> None:
    low, high = plan.bounds
    within = f"{seconds(low * best.seconds)} to {seconds(high * best.seconds)}" if low < high else "by this run"
    show.tiles([
        Tile("Step", seconds(best.seconds), within),
        Tile("Memory", size(best.memory.device), f"of {size(plan.wanted.cluster.memory_bytes)} on the fullest GPU"),
        Tile("Tokens", count(round(best.tokens_per_s)), "per second on all GPUs"),
        Tile("Cost", fixed(best.gpu_hours, 1), "GPU hours for 1e9 tokens"),
    ])  # fmt: skip
    show.markup(f'<section><p class="muted">Rests on {escape(plan.rests)}.</p></section>')


def _layouts(plan: Planned, best: Candidate) -> None:
    rows = [
        [brief(one.layout), seconds(one.seconds), change(one.score / best.score - 1), size(one.memory.device),
         "yes" if one in plan.found.front else ""]
        for one in plan.found.ranked
    ]  # fmt: skip
    heads = ["layout", "step", "against the best", "memory", "on the front"]
    sub = f"The best of each grid of tp, pp, cp and ep. On the front: no other has less time and less memory. {_SHORT}"
    show.section("Layouts", sub, show.table(heads, rows, [1, 2, 3]))


def _where(best: Candidate) -> None:
    spent = [[named(part), seconds(value), percent(value / best.seconds)] for part, value in parts(best.time).items() if value]
    show.section("Where the step goes", "On the slowest rank.", show.table(["part", "time", "share"], spent, [1, 2]))
    memory: Memory = best.memory
    held = [[part, size(getattr(memory, part)), percent(getattr(memory, part) / memory.device)] for part in _MEMORY
            if getattr(memory, part)]  # fmt: skip
    sub = escape(f"A rank of pipeline stage {memory.stage}, which needs most.")
    show.section("Where the memory goes", sub, show.table(["part", "size", "share"], held, [1, 2]))


def _options(own: Choices) -> None:
    rows = [
        [one.name, size(one.saved), change(one.seconds / own.now.seconds), size(one.candidate.memory.device)]
        for one in options(own)
    ]
    if rows:
        sub = "Single changes of the layout that runs, cheapest first."
        heads = ["change", "saves on the fullest GPU", "of the step", "leaves"]
        show.section("If memory is short", sub, show.table(heads, rows, [1, 2, 3]))


PAGE = Page("plan", "Plan", "Act", render)

"""Seven gates between a step graph and a prediction: what each measured, and whether a prediction may be shown.

A graph that stores a wait as the duration of a blocking call, or as thinking of the host, replays perfectly and predicts
wrongly. So the replay error alone admits nothing.
    1 replay       every step from its beginning, all unexplained delays zero, against the measured step
    2 unexplained  share of the critical path that nothing in the graph explains
    3 host         share of the path that is host time kept as measured without an operator over it (opaque), and of the span
                   that calls spend far above their own median without a modelled cause (absorbed): above the limit, edits
                   of host time are withheld
    4 edges        dependencies that the measurement refutes, and those that are inferred
    5 next step    step k's simulated time against the measured step k+1, beside the naive "the next step is like this one"
    6 probe        a delay put on one rank must move the operations that it meets by what the other ranks' arrivals leave
    7 variants     replay under other rules for inferred waits; those that replay within the limit are as credible, and the
                   spread of a prediction over them is its least interval
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from dtprof.model.graph.build import build
from dtprof.model.graph.graph import EdgeKind, NodeKind, StepGraph
from dtprof.model.graph.waits import REFUTED_BY_NS, RULES
from dtprof.model.simulate.engine import simulate
from dtprof.model.simulate.path import mean_shares, walker
from dtprof.model.simulate.windows import Window, by_step, given, windows
from dtprof.run import Run

MOST_REPLAY_ERROR = 0.05
MOST_UNEXPLAINED = 0.05
MOST_HOST = 0.10
MOST_REFUTED = 0.01
# a probe may be off by this much, and by the replay's own error
PROBE_WITHIN_NS = 5_000
PROBE_NS = 1_000_000
# a device's times are brought to the host's clock only so well: seen are returns up to 7 us before the end of their copy
CLOCKS_WITHIN_NS = 10_000
# a call is long where it takes this many times the median of its name, and at least this
_LONG, _LONG_NS = 3.0, 50_000
# what would let a graph explain more
_MORE = (
    "more captured steps of all ranks on a machine that does nothing else would show whether that is noise, and on a GPU "
    "enable_cuda_sync_events which stream waits for what"
)
_CLAIMS = (EdgeKind.HANDOFF, EdgeKind.EVENT, EdgeKind.BLOCK, EdgeKind.QUEUE)


@dataclass(frozen=True)
class StepReplay:
    """Replay of one step of one part; errors are ratios to the measured duration."""

    part: int
    rank: int | None
    step: int
    measured_ns: int
    replayed_ns: int
    unexplained: float
    error_next: float | None = None
    error_naive: float | None = None

    @property
    def error(self) -> float:
        """(replayed - measured) / measured."""
        return (self.replayed_ns - self.measured_ns) / self.measured_ns


@dataclass(frozen=True)
class Probe:
    """One delay probe: rank delayed, expected and simulated shift of the first operation that it meets others in, ns."""

    rank: int
    delay_ns: int
    expected_ns: int
    moved_ns: int

    @property
    def off_ns(self) -> int:
        """Difference between what should move and what does."""
        return abs(self.moved_ns - self.expected_ns)


@dataclass(frozen=True)
class Gates:
    """What the gates found. ``reasons`` says why a prediction is withheld; ``host_reasons`` why edits of host time are."""

    steps: tuple[StepReplay, ...]
    path: dict[str, float]
    absorbed: float
    refuted: int
    uncertain: int
    edges: int
    probes: tuple[Probe, ...]
    variants: dict[str, float]
    reasons: tuple[str, ...] = field(default=())
    host_reasons: tuple[str, ...] = field(default=())

    @property
    def replay_error(self) -> float | None:
        """Median of the absolute replay errors."""
        return _median_error(self.steps) if self.steps else None

    @property
    def unexplained(self) -> float | None:
        """Median unexplained share of the path."""
        return float(np.median([s.unexplained for s in self.steps])) if self.steps else None

    @property
    def credible_rules(self) -> tuple[str, ...]:
        """Rules for inferred waits under which the run replays within the limit; the first one made the graph."""
        return (RULES[0], *(rule for rule, error in self.variants.items() if error <= MOST_REPLAY_ERROR))

    @property
    def opaque(self) -> float:
        """Share of the path that is host time without an operator over it."""
        return self.path.get("host_opaque", 0.0)


def check(run: Run, graph: StepGraph) -> Gates:
    """All seven gates of a run's graph."""
    found = windows(run, graph)
    walking = walker(run, graph)
    paths = {(w.part, w.step): walking.walk(w) for w in found}
    steps = _replays(graph, found, {key: p.shares()["unexplained"] / max(p.dur_ns, 1) for key, p in paths.items()})
    path = mean_shares(list(paths.values()))
    absorbed = _absorbed(graph)
    refuted, uncertain, checked = _edges(graph)
    probes = _probes(run, graph)
    gates = Gates(steps, path, absorbed, refuted, uncertain, checked, probes, _variants(run, graph, found))
    return replace(gates, reasons=tuple(_reasons(gates)), host_reasons=tuple(_host_reasons(gates)))


def _variants(run: Run, graph: StepGraph, found: list[Window]) -> dict[str, float]:
    """Replay error under each other rule for inferred waits; none where nothing was inferred."""
    if not np.any((graph.why == EdgeKind.EVENT) & ~graph.certain):
        return {}
    return {rule: _median_error(_replays(build(run, rule), found, {})) for rule in RULES[1:]}


def _median_error(steps: tuple[StepReplay, ...]) -> float:
    return float(np.median([abs(s.error) for s in steps]))


def _replays(graph: StepGraph, found: list[Window], unexplained: dict[tuple[int, int], float]) -> tuple[StepReplay, ...]:
    out = []
    replayed: dict[tuple[int, int], int] = {}
    for step, mine in by_step(found).items():
        times = simulate(graph, given(graph, mine), wanted=[w.last for w in mine])
        replayed |= {(w.part, step): w.length(times) for w in mine}
    following = {(w.part, w.step): w.dur_ns for w in found if not w.to_end}
    for w in found:
        after = following.get((w.part, w.step + 1)) if not w.to_end else None
        got = replayed[w.part, w.step]
        out.append(
            StepReplay(
                w.part, w.rank, w.step, w.dur_ns, got, unexplained.get((w.part, w.step), 0.0),
                None if after is None else (got - after) / after, None if after is None else (w.dur_ns - after) / after,
            )
        )  # fmt: skip
    return tuple(out)


def _absorbed(graph: StepGraph) -> float:
    """Share of the span that calls which the graph does not let block spend far above their median."""
    calls = np.flatnonzero((graph.kind == NodeKind.CALL) & (graph.dur > 0))
    if len(calls) == 0:
        return 0.0
    spent = 0
    for name in np.unique(graph.name[calls]).tolist():
        dur = graph.dur[calls[graph.name[calls] == name]]
        spent += int(dur[dur > max(_LONG * float(np.median(dur)), _LONG_NS)].sum())
    parts = len(np.unique(graph.part[calls]))
    span = int(graph.end[graph.part >= 0].max() - graph.start[graph.part >= 0].min())
    return spent / parts / span if span else 0.0


def _edges(graph: StepGraph) -> tuple[int, int, int]:
    """(refuted, inferred, all) among the edges that claim a dependency; refuted: ``dst`` came before ``src`` had ended."""
    claims = np.isin(graph.why, [int(k) for k in _CLAIMS])
    crosses = np.isin(graph.why, [int(EdgeKind.BLOCK), int(EdgeKind.QUEUE)])
    within = np.where(crosses, CLOCKS_WITHIN_NS, REFUTED_BY_NS)
    refuted = claims & (graph.start[graph.dst] < graph.end[graph.src] - within)
    return int(refuted.sum()), int((claims & ~graph.certain).sum()), int(claims.sum())


def _probes(run: Run, graph: StepGraph) -> tuple[Probe, ...]:
    """Each rank entered later by PROBE_NS: the first operation that all meet in must move by what its arrival leaves."""
    meets = np.flatnonzero(graph.kind == NodeKind.MEET)
    if len(meets) == 0:
        return ()
    calm = simulate(graph)
    roots = np.diff(graph.first) == 0
    out = []
    for part in run.parts:
        mine = graph.part == part.ordinal
        arrivals = np.flatnonzero(mine & (graph.kind == NodeKind.ARRIVAL))
        if part.rank is None or len(arrivals) == 0:
            continue
        first = int(arrivals[np.argmin(graph.start[arrivals])])
        meet = int(graph.dst[np.flatnonzero((graph.src == first) & (graph.why == EdgeKind.MEET))[0]])
        others = graph.src[graph.first[meet] : graph.first[meet + 1]]
        slack = int(calm.start[meet] - calm.start[first])
        if len(others) < 2:
            continue
        late = np.zeros(len(graph), np.int64)
        late[roots & mine] = PROBE_NS
        moved = int(simulate(graph, delay=late).start[meet] - calm.start[meet])
        out.append(Probe(part.rank, PROBE_NS, max(0, PROBE_NS - slack), moved))
    return tuple(out)


def _reasons(gates: Gates) -> list[str]:
    out = []
    if not gates.steps:
        return ["no step of the run can be replayed: capture at least one whole step"]
    error, unexplained = gates.replay_error or 0.0, gates.unexplained or 0.0
    if error > MOST_REPLAY_ERROR:
        out.append(f"the replay is {error:.1%} off (limit {MOST_REPLAY_ERROR:.0%}); {_MORE}")
    if unexplained > MOST_UNEXPLAINED:
        out.append(f"{unexplained:.1%} of the critical path is unexplained (limit {MOST_UNEXPLAINED:.0%}); {_MORE}")
    if gates.edges and gates.refuted > MOST_REFUTED * gates.edges:
        out.append(f"the measurement refutes {gates.refuted} of {gates.edges} dependencies; {_MORE}")
    off = [p for p in gates.probes if p.off_ns > PROBE_WITHIN_NS]
    if off:
        out.append(f"a delay of rank {off[0].rank} moves its first operation by {off[0].moved_ns} ns, not {off[0].expected_ns}")
    return out


def _host_reasons(gates: Gates) -> list[str]:
    if gates.opaque + gates.absorbed <= MOST_HOST:
        return []
    return [
        f"{gates.opaque:.0%} of the critical path is host time outside any operator and {gates.absorbed:.0%} of the span is "
        f"spent in calls that block for an unknown reason (together at most {MOST_HOST:.0%}); ranges around what the host does "
        "there (dtprof.annotate) would name it"
    ]

"""Delays planted in real jobs against the step graph: what waits moves, by as much, and what does not stays.

Taking the delay of one rank out of a run's graph has to make the step shorter by that delay, or by what the other ranks' own
delays leave of it.
"""

import statistics

import numpy as np
import pytest

pytest.importorskip("torch")

import dtprof
from dtprof import intervals
from dtprof.edits import parse_edits
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import EdgeKind
from dtprof.model.simulate.engine import simulate
from dtprof.model.simulate.windows import by_step, given, windows
from dtprof.model.whatif import what_if

DELAY = "dtprof_lab::slow_compute"
EMULATION = """
width_bytes = 4096
[[layers]]
name = "block"
repeat = 4
forward_ms = 10
backward_ms = 20
tensors = [262144]
"""
TRANSFORMER = ["--layers", "4", "--dim", "64", "--seq", "32"]
# job -> its words, how often per step a delay of the forward pass acts, and how many ranks it has; the last one is delayed
JOBS = {
    "ddp": (["--emulate"], 1, 2),
    "fsdp": (["--emulate"], 1, 2),
    "pipeline": (["--emulate", "--microbatches", "4"], 4, 2),
    "tensor_parallel": (TRANSFORMER, 1, 2),
    "context_parallel": (TRANSFORMER, 1, 2),
    "moe": (TRANSFORMER, 1, 2),
    "hybrid": ([*TRANSFORMER, "--dp", "1", "--tp", "2", "--pp", "2", "--microbatches", "2", "--block-ms", "4"], 2, 4),
}
MS = 1e6
# of a delay that was taken out or planted: what sleeping on a busy machine costs
WITHIN = 0.1


@pytest.fixture(scope="module")
def job(run, tmp_path_factory):
    """``job(name, *delays)``: the run of a job with so many ms planted in the forward pass of ranks 0, 1, …"""
    folder = tmp_path_factory.mktemp("probes")
    emulation = folder / "emulation.toml"
    emulation.write_text(EMULATION)

    def go(name, *delays):
        out = folder / f"{name}-{'-'.join(map(str, delays))}"
        if out.exists():
            return dtprof.open_run(out)
        words = [w for word in JOBS[name][0] for w in ((word, str(emulation)) if word == "--emulate" else (word,))]
        faults = [w for rank, ms in enumerate(delays) if ms for w in ("--inject", f"slow_rank={rank}:{ms}ms")]
        window = ["--steps", "13", "--capture", "4:12", "--out", str(out)]
        run(JOBS[name][2], ["-m", f"dtprof_sample_jobs.{name}", *words, *faults, *window])
        return dtprof.open_run(out)

    return go


def step_ms(run, graph):
    """Median over the captured steps of the longest simulated duration over the ranks."""
    found = by_step(windows(run, graph))
    times = {step: simulate(graph, given(graph, mine)) for step, mine in found.items()}
    return statistics.median(max(w.length(times[step]) for w in mine) for step, mine in found.items()) / MS


def measured_ms(run):
    """Median over the captured steps of the longest duration over the ranks, as the graph's windows bound them."""
    found = by_step(windows(run, build(run)))
    return statistics.median(max(w.dur_ns for w in mine) for mine in found.values()) / MS


def without(run, graph, rank):
    """The graph without the planted operators of a rank."""
    lag = graph.lag.copy()
    part = next(p for p in run.parts if p.rank == rank)
    events = run.table("events", part.ordinal)
    rows = np.flatnonzero(events.is_("name", DELAY))
    assert len(rows), "nothing was planted"
    begins = events["ts"][rows] + part.clock_offset_ns
    planted = intervals.union(begins, begins + events["dur"][rows])
    edges = np.flatnonzero((graph.why == EdgeKind.THREAD) & (graph.part[graph.dst] == part.ordinal))
    lo, hi = graph.end[graph.src[edges]], graph.start[graph.dst[edges]]
    lag[edges] -= intervals.measure(planted, lo, np.maximum(lo, hi))
    return graph.with_times(lag=lag)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_delay_moves_what_waits_for_it(job, name):
    """The last rank computes 40 ms longer: without it the step is as much shorter, in the graph and in the job."""
    _, times, ranks = JOBS[name]
    slow, clean = job(name, *[0] * (ranks - 1), 40), job(name, *[0] * ranks)
    graph = build(slow)
    replayed, predicted = step_ms(slow, graph), step_ms(slow, without(slow, graph, ranks - 1))
    truth, planted = measured_ms(slow) - measured_ms(clean), 40 * times
    whole = measured_ms(slow)
    print(f"| {name} | {whole:.1f} | {replayed / whole - 1:+.1%} | {planted} | {replayed - predicted:.1f} | {truth:.1f} |")
    assert replayed == pytest.approx(whole, rel=0.15)
    assert replayed - predicted == pytest.approx(planted, rel=WITHIN)


@pytest.mark.slow
def test_a_delay_of_the_first_stage_hides_in_part_behind_the_second(job):
    """Two stages, two micro-batches: while the first stage's second forward pass is late, the second stage is at work."""
    slow = job("hybrid", 0, 40, 0, 0)
    graph = build(slow)
    moved = step_ms(slow, graph) - step_ms(slow, without(slow, graph, 1))
    assert 40 * (1 - WITHIN) < moved < 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "tensor_parallel"])
def test_a_delay_beside_a_longer_one_moves_nothing(job, name):
    """Rank 0 computes 60 ms longer, rank 1 30 ms: rank 1's is hidden while rank 0 is waited for; rank 0's costs 30."""
    both = job(name, 60, 30)
    graph = build(both)
    base = step_ms(both, graph)
    assert base - step_ms(both, without(both, graph, 1)) == pytest.approx(0, abs=6)
    assert base - step_ms(both, without(both, graph, 0)) == pytest.approx(30, abs=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_planted_delay_is_what_the_edit_takes_out(job, name):
    """As rank 0, rank 1 is 40 ms faster, and by as much as the two differ anyway."""
    found = what_if(job(name, 0, 40), parse_edits(["ideal.rank=1"]))
    assert found.withheld == ()
    print(f"| {name} | {found.saved_ns / MS:.1f} |")
    assert found.saved_ns == pytest.approx(40 * MS, abs=10 * MS)

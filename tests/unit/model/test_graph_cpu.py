"""The step graph of a job without device work: two ranks of gloo by hand, where delays move what waits and nothing else."""

import numpy as np
import pytest

from dtprof.edits import parse_edits
from dtprof.ingest.match import match
from dtprof.ingest.store import IngestStore
from dtprof.model.gates import check
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import EdgeKind, NodeKind
from dtprof.model.simulate.engine import simulate
from dtprof.model.simulate.windows import by_step, given, windows
from dtprof.model.whatif import what_if
from dtprof.run import Manifest, Part, Run
from dtprof.table import Table

MS = 1_000_000
BASE = 1_700_000_000_000_000_000
TRAINING, WORKER = 0, 1
STEP = 100


def op(name, start, dur, lane=TRAINING, kind="cpu_op"):
    return {"name": name, "ts": BASE + round(start * MS), "dur": round(dur * MS), "lane": lane, "kind": kind}


def part_tables(spans, steps, messages=()):
    rows = sorted(({**row, "step": int((row["ts"] - BASE) // (STEP * MS))} for row in spans), key=lambda row: row["ts"])
    comm = []
    for i, row in enumerate(rows):
        if row["kind"] == "comm":
            name = row["name"].partition(":")[2]
            entry = {
                "event": i,
                "op": name,
                "bytes_in": 4096,
                "bytes_out": 4096,
                "bytes_known": "exact",
                "known_by": "collector",
            }
            entry |= {"peer": messages[len(comm)]} if messages else {"group": 0, "seq": len(comm)}
            comm.append(entry)
    times = [
        {"step": k, "host_ts": BASE + k * STEP * MS, "host_dur": STEP * MS, "captured": True, "complete": True} for k in steps
    ]
    lanes = [
        {"id": lane, "process": 0, "device": -1, "thread": lane, "name": role, "role": role}
        for lane, role in ((TRAINING, "training"), (WORKER, "gloo"))
    ]
    groups = [{"id": 0, "name": "default", "ranks": (0, 1), "size": 2, "backend": "gloo"}]
    made = {"events": rows, "comm": comm, "steps": times, "lanes": lanes, "groups": groups}
    return {name: Table.from_rows(name, found) for name, found in made.items()}


def run_of(*ranks, **kw):
    store = IngestStore(
        {r: part_tables(spans, range(2), **{k: v[r] for k, v in kw.items()}) for r, spans in enumerate(ranks)}, {}
    )
    run = Run(Manifest(run_id="x", parts=[Part(ordinal=r, rank=r, world_size=2) for r in range(2)]), store, "", "test")
    store.derive = lambda: match(run)
    run.table("collectives")
    return run


def reducing(compute, *, other, steps=2):
    """Each step: ``compute`` ms, an all-reduce handed over, 20 ms of further work, the wait, 10 ms of the rest.

    The all-reduce takes 30 ms from when both are there.
    """
    spans = []
    for k in range(steps):
        at, meet = k * STEP, k * STEP + max(compute, other)
        spans += [
            op("forward", at, compute),
            op("c10d::allreduce_", at + compute, 0.1),
            op("backward", at + compute + 0.1, 20),
            op("gloo:all_reduce", at + compute, meet + 30 - at - compute, WORKER, "comm"),
            op("update", meet + 30, 10),
            op("log", meet + 40, STEP - (meet - at) - 40),
        ]
    return spans


@pytest.fixture
def run():
    return run_of(reducing(10, other=25), reducing(25, other=10))


def lengths(graph, run, delay=None):
    """Rank -> simulated duration of step 0, with further delays of nodes; the step ends with the last operator's begin."""
    found = by_step(windows(run, graph))[0]
    times = simulate(graph, given(graph, found), delay)
    return {w.rank: w.length(times) for w in found}


def named(run, graph, rank, name, step=0):
    """The node of a call or operator."""
    events = run.table("events", rank)
    rows = [i for i, n in enumerate(events.text("name")) if n == name and events["step"][i] == step]
    (node,) = np.flatnonzero((graph.part == rank) & np.isin(graph.row, rows) & (graph.kind == NodeKind.CALL))
    return int(node)


def later(graph, node, ms):
    out = np.zeros(len(graph), np.int64)
    out[node] = round(ms * MS)
    return out


def test_the_wait_is_found_and_the_replay_is_exact(run):
    graph = build(run)
    assert graph.notes == {"0": {"waits_inferred": 2, "waits_unplaced": 0}, "1": {"waits_inferred": 2, "waits_unplaced": 0}}
    gates = check(run, graph)
    assert gates.reasons == ()
    assert [s.replayed_ns for s in gates.steps] == [STEP * MS] * 4
    assert (gates.refuted, gates.unexplained) == (0, 0.0)
    for rank in (0, 1):
        assert named(run, graph, rank, "update") >= 0


@pytest.mark.parametrize(
    ("rank", "ms", "moved"),
    [(0, 10, 0), (0, 15, 0), (0, 20, 5), (1, 20, 20), (1, 3, 3)],
    ids=["inside the other's lead", "all of it", "beyond it", "the last one", "a little"],
)
def test_a_delay_before_handing_over_moves_both_by_what_the_other_rank_does_not_cover(run, rank, ms, moved):
    """Rank 0 is there 15 ms before rank 1, so it has 15 ms to lose; rank 1 has none."""
    graph = build(run)
    found = lengths(graph, run, later(graph, named(run, graph, rank, "c10d::allreduce_"), ms))
    assert found == {0: (STEP + moved) * MS, 1: (STEP + moved) * MS}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_delay_after_the_wait_moves_its_own_rank_only(run, rank):
    graph = build(run)
    found = lengths(graph, run, later(graph, named(run, graph, rank, "update"), 7))
    assert found == {rank: (STEP + 7) * MS, 1 - rank: STEP * MS}


def test_work_beside_a_transfer_may_grow_until_the_transfer_is_over(run):
    """Rank 1 works 20 of the 30 ms that its all-reduce takes: 9.9 ms more are free."""
    graph = build(run)
    update = named(run, graph, 1, "update")
    (edge,) = np.flatnonzero((graph.dst == update) & (graph.why == EdgeKind.THREAD))
    for more, moved in ((9, 0), (15, 5.1)):
        lag = graph.lag.copy()
        lag[edge] += more * MS
        assert lengths(graph.with_times(lag=lag), run)[1] == round((STEP + moved) * MS)


@pytest.mark.parametrize("kind", [EdgeKind.BLOCK, EdgeKind.LAUNCH, EdgeKind.MEET])
def test_without_these_edges_a_delay_no_longer_moves_what_waits(run, kind):
    graph = build(run).without(kind)
    found = lengths(graph, run, later(graph, named(run, graph, 1, "c10d::allreduce_"), 20))
    assert found[0] < (STEP + 20) * MS


def test_the_slow_rank_repaired(run):
    """As rank 0, rank 1 hands over 15 ms earlier."""
    spans = [reducing(10, other=25), reducing(25, other=10)]
    found = what_if(run_of(*spans), parse_edits(["ideal.rank=1"]))
    assert found.withheld == ()
    assert found.saved_ns == pytest.approx(15 * MS, abs=0.2 * MS)


def messages():
    """Rank 0 works 30 ms and sends; rank 1 asks at 5 ms, waits, and works 40 ms. A message takes 1 ms."""
    sender, receiver = [], []
    for k in range(2):
        at = k * STEP
        sender += [op("work", at, 30), op("c10d::send", at + 30, 0.1), op("gloo:send", at + 30, 1, kind="comm")]
        sender += [op("rest", at + 31, STEP - 31)]
        receiver += [op("c10d::recv_", at + 5, 0.1), op("gloo:recv", at + 5, 26, kind="comm"), op("work", at + 31, 40)]
        receiver += [op("rest", at + 71, STEP - 71)]
    return run_of(sender, receiver, messages=([1, 1], [0, 0]))


@pytest.mark.parametrize(("rank", "name", "ms", "moved"), [
    (0, "c10d::send", 12, {0: 12, 1: 12}), (1, "c10d::recv_", 12, {0: 0, 1: 0}), (1, "c10d::recv_", 30, {0: 5, 1: 5}),
])  # fmt: skip
def test_a_message_comes_when_it_was_sent_and_asked_for(rank, name, ms, moved):
    run = messages()
    graph = build(run)
    assert np.count_nonzero(graph.kind == NodeKind.MEET) == 2
    found = lengths(graph, run, later(graph, named(run, graph, rank, name), ms))
    assert found == {r: (STEP + by) * MS for r, by in moved.items()}


def test_operations_that_nobody_is_seen_to_wait_for_are_counted():
    """The all-reduce ends inside of an operator in every step: where it is waited for does not show."""
    spans = [
        [
            row
            for k in range(2)
            for row in (
                op("c10d::allreduce_", k * STEP, 0.1), op("work", k * STEP + 0.1, STEP - 1),
                op("gloo:all_reduce", k * STEP, 40, WORKER, "comm"), op("rest", k * STEP + STEP - 0.9, 0.9),
            )
        ]
        for _ in range(2)
    ]  # fmt: skip
    graph = build(run_of(*spans))
    assert graph.notes["0"] == {"waits_inferred": 0, "waits_unplaced": 2}

"""The step graph on real traces: replays, known answers of a delay, and what a missing edge would do."""

from functools import cache

import numpy as np
import pytest

import dtprof
from dtprof.model.gates import check
from dtprof.model.graph.build import build
from dtprof.model.graph.graph import EdgeKind, NodeKind
from dtprof.model.simulate.engine import simulate
from dtprof.model.simulate.path import walker
from dtprof.model.simulate.windows import by_step, given, windows

SINGLE = (
    "a100_rank3of8_allreduce_alltoall", "v100_rank1of2_allreduce_alltoall", "v100_ns_resolution",
    "a100_rank0of2_collective_args_ns", "mi300x_rank0of8_ddp_resnet", "b200_rank0of8_71_groups_multimem", "h100_qwen_0.5b",
)  # fmt: skip


@cache
def opened(path):
    run = dtprof.open_run(path)
    return run, build(run)


@pytest.fixture
def dlrm(truth):
    return opened(truth / "traces" / "kineto" / "dlrm_8rank_v100")


def meets(graph):
    return np.flatnonzero(graph.kind == NodeKind.MEET)


def enter_earlier(graph, part, ns):
    """Delays that let one part begin earlier."""
    late = np.zeros(len(graph), np.int64)
    late[(np.diff(graph.first) == 0) & (graph.part == part)] = -ns
    return late


@pytest.mark.parametrize("name", SINGLE)
def test_single_rank_traces_replay(truth, name):
    run, graph = opened(truth / "traces" / "kineto" / f"{name}.json.gz")
    found = check(run, graph)
    assert found.steps
    assert found.replay_error < 0.02
    assert found.refuted == 0
    assert found.reasons == ()


def test_what_the_host_hides_withholds_its_edits(truth):
    run, graph = opened(truth / "traces" / "kineto" / "b200_rank0of8_71_groups_multimem.json.gz")
    found = check(run, graph)
    assert found.opaque > 0.2
    assert "outside any operator" in found.host_reasons[0]


def test_the_launch_queue_is_seen_where_there_is_one(truth):
    _, graph = opened(truth / "traces" / "kineto" / "v100_ns_resolution.json.gz")
    assert 1021 <= graph.notes["0"]["queue_depth"] <= 1022
    _, other = opened(truth / "traces" / "kineto" / "v100_rank1of2_allreduce_alltoall.json.gz")
    assert other.notes["0"]["queue_depth"] is None


def test_calls_that_block_are_no_mere_duration(truth):
    run, graph = opened(truth / "traces" / "kineto" / "v100_ns_resolution.json.gz")
    assert check(run, graph).absorbed < 0.01
    blocked = np.isin(graph.why, [EdgeKind.QUEUE, EdgeKind.BLOCK])
    assert graph.dur[graph.src[blocked & (graph.why == EdgeKind.QUEUE)]].min() > 0


def test_eight_ranks_replay_together(dlrm):
    run, graph = dlrm
    times = simulate(graph)
    assert np.abs(times.start - graph.start)[meets(graph)].max() <= 20_000
    for part in run.parts:
        mine = (graph.part == part.ordinal) & np.isin(graph.kind, [NodeKind.OP, NodeKind.ARRIVAL])
        span = graph.end[mine].max() - graph.start[mine].min()
        assert abs(times.end[mine].max() - graph.end[mine].max()) <= 0.002 * span


def test_the_last_to_arrive_is_the_last_to_arrive(dlrm):
    run, graph = dlrm
    times = simulate(graph)
    ranks = {p.ordinal: p.rank for p in run.parts}
    table = run.table("collectives")
    for node, expected in zip(meets(graph), table["last_rank"].tolist(), strict=True):
        arrivals = graph.src[graph.first[node] : graph.first[node + 1]]
        assert ranks[int(graph.part[arrivals[np.argmax(times.start[arrivals])]])] == expected


@pytest.mark.parametrize(("earlier_us", "moves_us"), [(100, 100), (504, 504), (1000, 504), (5000, 504)])
def test_rank_7_entering_earlier_moves_its_first_operation_until_the_next_latest_is_awaited(dlrm, earlier_us, moves_us):
    run, graph = dlrm
    part = next(p.ordinal for p in run.parts if p.rank == 7)
    first = meets(graph)[0]
    calm, moved = simulate(graph), simulate(graph, delay=enter_earlier(graph, part, earlier_us * 1000))
    assert calm.start[first] - moved.start[first] == pytest.approx(moves_us * 1000, abs=2000)


def test_the_gain_reaches_all_later_operations(dlrm):
    run, graph = dlrm
    part = next(p.ordinal for p in run.parts if p.rank == 7)
    gains = (simulate(graph).start - simulate(graph, delay=enter_earlier(graph, part, 1_000_000)).start)[meets(graph)]
    assert gains.min() > 450_000


@pytest.mark.parametrize("kind", [EdgeKind.HANDOFF, EdgeKind.BLOCK, EdgeKind.EVENT])
def test_without_these_edges_the_answer_changes(dlrm, kind):
    """A graph that lacks them replays well or not; what it says of a change is wrong, which is what this suite must notice."""
    run, graph = dlrm
    part = next(p.ordinal for p in run.parts if p.rank == 7)

    def gains(of):
        return (simulate(of).start - simulate(of, delay=enter_earlier(graph, part, 1_000_000)).start)[meets(graph)]

    without = graph.without(kind)
    replay = np.abs(simulate(without).start - graph.start)[meets(graph)].max()
    assert np.abs(gains(without) - gains(graph)).max() > 100_000 or replay > 200_000


def test_a_delay_moves_exactly_what_the_other_ranks_leave(dlrm):
    run, graph = dlrm
    probes = check(run, graph).probes
    assert {p.rank for p in probes} == set(range(8))
    assert [p.expected_ns for p in probes if p.rank == 7] == [1_000_000]
    assert all(p.off_ns <= 2000 for p in probes)


def test_shifting_and_stretching_everything_is_exact(dlrm):
    _, graph = dlrm
    calm = simulate(graph)
    roots = (np.diff(graph.first) == 0).astype(np.int64)
    assert np.array_equal(simulate(graph, delay=roots * 1_000_000).start, calm.start + 1_000_000)
    stretched = graph.with_times(dur=graph.dur * 2, lag=graph.lag * 2)
    origin = int(graph.start[np.diff(graph.first) == 0].min())
    twice = simulate(stretched, delay=roots * (graph.start - origin))
    assert np.array_equal(twice.start - origin, 2 * (calm.start - origin))


@pytest.mark.parametrize("name", ["dlrm_8rank_v100", *(f"{n}.json.gz" for n in SINGLE)])
def test_paths_sum_to_the_step(truth, name):
    run, graph = opened(truth / "traces" / "kineto" / name)
    walking = walker(run, graph)
    for window in windows(run, graph):
        assert walking.walk(window).dur_ns == window.dur_ns


def test_steps_are_the_accounting_s_steps(truth):
    run, graph = opened(truth / "traces" / "kineto" / "a100_rank3of8_allreduce_alltoall.json.gz")
    found = by_step(windows(run, graph))
    assert list(found) == [1009, 1010, 1011, 1012, 1013, 1014]
    assert [round(found[s][0].dur_ns / 1e6, 1) for s in list(found)[:5]] == [75.5, 76.9, 76.3, 76.8, 78.4]


def test_what_crowds_is_a_rule_and_no_edge(truth):
    """The rule explains why side-stream kernels wait; without it the steps come out too short."""
    run, graph = opened(truth / "traces" / "kineto" / "a100_rank3of8_allreduce_alltoall.json.gz")
    for mine in list(by_step(windows(run, graph)).values())[:5]:
        pinned, window = given(graph, mine), mine[0]
        plain = simulate(graph, pinned, crowding=False)
        assert window.length(plain) < 0.98 * window.dur_ns
        assert window.length(simulate(graph, pinned)) == pytest.approx(window.dur_ns, rel=0.015)


@pytest.mark.parametrize("name", ["a100_rank0of2_collective_args_ns", "a100_rank3of8_allreduce_alltoall", "v100_ns_resolution"])
def test_a_step_alone_lasts_as_long_as_among_all(truth, name):
    run, graph = opened(truth / "traces" / "kineto" / f"{name}.json.gz")
    for mine in by_step(windows(run, graph)).values():
        pinned = given(graph, mine)
        whole, alone = simulate(graph, pinned), simulate(graph, pinned, wanted=[w.last for w in mine])
        assert [w.length(alone) for w in mine] == [w.length(whole) for w in mine]
        order = np.empty(len(graph), np.int64)
        order[graph.order] = np.arange(len(graph))
        after = order > order[graph.start <= max(graph.start[w.last] for w in mine)].max()
        assert np.array_equal(alone.start[after], graph.start[after])

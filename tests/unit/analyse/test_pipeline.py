"""Bubbles of pipelines, measured from passes: those of theory, with their place; and what the rules say of them."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.analyse.pipeline import analyse
from dtprof.run import Manifest, MemoryStore, Part, Run
from tests.unit.kineto_maker import Trace, found, study
from tests.unit.model.test_pipeline import MS, seen
from tests.unit.model.test_pipeline import run_of as model_run
from tests.unit.shapes.build import PartBuilder, matched, shape
from tests.unit.shapes.pipeline import pipeline_batches


def run_of(it):
    return model_run(it)[0]


def rules(run):
    return {f.rule: f for f in findings(study_of(run)) if f.rule.startswith("pipeline.")}


def the(run):
    (pipeline,) = study_of(run).result("pipeline").pipelines
    return pipeline


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("ranks", "micro"), [(2, 8), (4, 8), (4, 16)])
def test_the_bubble_is_that_of_theory_with_its_place(schedule, ranks, micro):
    pipeline = the(run_of(seen(ranks, micro, schedule=schedule, between=0.5, message=1)))
    assert pipeline.bubble == pytest.approx((ranks - 1) / (micro + ranks - 1), abs=0.02)
    assert pipeline.theory == (ranks - 1) / (micro + ranks - 1)
    assert (pipeline.stages, pipeline.microbatches) == (ranks, micro)
    last = pipeline.ranks[-1]
    assert last.waits("warm-up") == pytest.approx((ranks - 1) * 20 * MS, abs=(ranks + 1) * 2 * MS)
    assert last.waits("drain") == pytest.approx((ranks - 1) * 40 * MS, abs=(ranks + 1) * 2 * MS)


def test_interleaving_halves_it():
    pipeline = the(run_of(seen(2, 8, schedule="interleaved", per_rank=2)))
    assert pipeline.bubble == pytest.approx(1 / 17, abs=0.01)
    assert pipeline.theory is None
    assert [r.stages for r in pipeline.ranks] == [(0, 2), (1, 3)]


def test_a_healthy_pipeline_has_no_finding():
    assert rules(run_of(seen(2, 8, between=0.5, message=0.5))) == {}


def test_few_micro_batches_are_found_and_more_are_predicted():
    finding = rules(run_of(seen(4, 4)))["pipeline.microbatches"]
    assert finding.ranks == (0, 1, 2, 3)
    assert finding.seconds_per_step == pytest.approx(3 * 60e-3, rel=0.02)
    assert finding.bound
    assert finding.edit["pipeline.microbatches"] in (8, 16)
    assert finding.prediction.seconds_per_step > 0.05
    assert finding.evidence[0].count > 0


def slow_stage(more=10, stage=1):
    it = seen(4, 16)
    it.takes["F", stage] += more * MS
    return run_of(it)


def test_the_slow_stage_is_named_with_its_price():
    finding = rules(slow_stage())["pipeline.imbalance"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(16 * 10e-3, rel=0.02)
    assert "Stage 1 (rank 1) takes 10.0 ms longer" in finding.title.replace("\xa0", " ")
    assert "forward pass" in finding.title
    assert finding.edit == {"pipeline.balance": "even"}


def test_a_little_more_is_no_imbalance():
    assert "pipeline.imbalance" not in rules(slow_stage(more=4))


def test_a_schedule_with_less_bubble_is_predicted():
    it = seen(4, 8)
    finding = rules(run_of(it))["pipeline.schedule"]
    assert finding.edit["pipeline.schedule"] in ("interleaved", "zero-bubble")
    assert finding.seconds_per_step is None


def test_interleaving_that_does_not_pay_is_taken_back():
    """5 ms between any two passes, and twice as many of them: 160 ms more, for half of a bubble of 144 ms."""
    it = seen(2, 16, forward=48, backward=96, between=5, schedule="interleaved", per_rank=2)
    finding = rules(run_of(it))["pipeline.schedule"]
    assert finding.edit["pipeline.schedule"] == "1f1b"
    assert "more messages" in finding.why


def test_ranks_that_are_missing_make_it_abstain():
    run = run_of(seen(2, 2))
    alone = Run(Manifest(run_id="p", parts=run.parts[:1]), run.store, "", "dtprof")
    result = analyse(study_of(alone))
    assert "only rank 0" in result.abstained
    assert rules(alone) == {}
    several = Run(Manifest(run_id="p", parts=[*run.parts, run.parts[0]]), run.store, "", "dtprof")
    assert "several captures" in analyse(study_of(several)).abstained


def test_passes_of_one_direction_are_no_pipeline():
    run = run_of(seen(2, 4))
    for rank in (0, 1):
        events = run.table("events", rank)
        run.store._tables["events", rank] = events.take(events.is_("phase", "forward"))
    assert "tag both" in study_of(run).result("pipeline").abstained


def beside(one, two):
    """Two pipelines of two ranks each as one run."""
    parts = [*one.parts, *(Part(ordinal=p.ordinal + 2, rank=p.rank + 2) for p in two.parts)]
    names = ("events", "steps", "lanes")
    held = {(n, p.ordinal + more): r.table(n, p.ordinal) for r, more in ((one, 0), (two, 2)) for p in r.parts for n in names}
    places = {str(r): {"dp": r // 2, "pp": r % 2} for r in range(4)}
    return Run(Manifest(run_id="p", parts=parts, coordinates=places), MemoryStore(held), "", "dtprof")


def longer(stage):
    it = seen(2, 8)
    it.takes["B", stage] += 20 * MS
    return run_of(it)


def test_pipelines_beside_each_other_are_taken_apart():
    both = beside(run_of(seen(2, 8)), longer(1))
    assert [[r.rank for r in p.ranks] for p in study_of(both).result("pipeline").pipelines] == [[0, 1], [2, 3]]
    assert rules(both)["pipeline.imbalance"].ranks == (3,)


def test_a_stage_that_is_longer_in_every_pipeline_is_named_with_all_its_ranks():
    finding = rules(beside(longer(1), longer(1)))["pipeline.imbalance"]
    assert finding.ranks == (1, 3)
    assert "Stage 1 (ranks 1, 3)" in finding.title.replace("\xa0", " ")
    assert rules(beside(longer(0), longer(1)))["pipeline.imbalance"].ranks in ((0,), (3,))


def test_a_schedule_that_only_divides_a_long_stage_is_not_advised():
    """Interleaving gives each rank a part of the long stage, which saves what stages made alike save, and little beyond."""
    it = seen(2, 8, between=1)
    it.takes["F", 1] += 20 * MS
    told = rules(run_of(it))
    assert "pipeline.imbalance" in told and "pipeline.schedule" not in told


def test_passes_of_kernels_are_read_from_their_tags():
    """The shape has a single whole step with two micro-batches: F 100 us, B 200 us."""
    pipeline = the(matched(pipeline_batches()))
    assert pipeline.takes["B", 1] == 200_000
    assert pipeline.takes["F", 0] == 100_000
    drain = pipeline.ranks[0].waits("warm-up") + pipeline.ranks[0].waits("steady") + pipeline.ranks[0].waits("drain")
    assert drain == pytest.approx(320_000 + 120_000)
    assert pipeline.ranks[0].bubbles[0].receives


def untagged(tmp_path, micro=8, forward=1000, backward=2000, move=20):
    """A Kineto pipeline of two stages on devices, 1F1B, whose receives span what a rank waits; us."""
    for rank, passes in enumerate(order_in_time(micro, forward, backward, move)):
        t = Trace(rank, 2)
        args = {"Collective name": "recv", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float", "Group size": 2}
        args |= {"Process Group Name": "pp", "Process Group Ranks": "[0, 1]", "Src Rank": 1 - rank, "Dst Rank": rank}
        period = 10 + 9 * (forward + backward) + 10 * move
        free = 10
        for k in range(4):
            base = period * k
            t.step(k, base, base + period)
            for what, start, length, receives in passes:
                if receives:
                    t.run("ncclDevKernel_SendRecv", max(free, base), free, base + start, 20, **args, Rank=rank)
                t.run(what, max(free, base), base + start, base + start + length)
                free = base + start + length
        t.write(tmp_path / f"rank{rank}.json")
    return tmp_path


def order_in_time(micro, forward, backward, move):
    """Of each rank (name, start, length, whether it needs a message) of its passes, computed pass by pass."""
    orders = {r: [("F", m) for m in range(2 - r)] for r in (0, 1)}
    for r, mine in orders.items():
        for m in range(micro):
            mine += [("B", m)] + [("F", 2 - r + m)] * (2 - r + m < micro)
    ends, free, out = {}, {0: 10, 1: 10}, {0: [], 1: []}
    while any(orders.values()):
        for r, mine in orders.items():
            while mine and ((needs := (mine[0][0], 1 - r, mine[0][1])) in ends or (mine[0][0] == "F") == (r == 0)):
                kind, m = mine.pop(0)
                receives = (kind == "F") == (r == 1)
                start = max(ends[needs] + move, free[r] + move) if receives else free[r]
                length = forward if kind == "F" else backward
                ends[kind, r, m] = free[r] = start + length
                out[r].append((kind, start, length, receives))
    return [out[0], out[1]]


def test_a_bubble_inside_receives_is_told_from_moving_without_any_tag(tmp_path):
    path = untagged(tmp_path)
    lens = study(path)
    assert "dtprof.annotate" in lens.result("pipeline").abstained
    steps = {p.rank: [s for s in p.steps if s.complete] for p in lens.result("accounting").parts}
    for rank, mine in steps.items():
        for step in mine:
            moved = step.accounting["comm_transfer_ns"]
            assert moved == 8 * 20_000
            # F + B on either rank: what rank 1 waits while the pipeline drains is part of the next step's first receive
            assert step.message_wait_ns == pytest.approx(3_000_000, abs=400_000), rank
            assert step.accounting["comm_unsplit_ns"] == 0
    share = sum(s.message_wait_ns for mine in steps.values() for s in mine) / (6 * (27_000_000 + 10 * 20_000))
    assert share == pytest.approx(1 / 9, abs=0.02)
    assert "comm.exposed" not in found(path)


def test_waiting_for_stages_that_nothing_tags_is_named_bubble():
    made = []
    for rank in range(2):
        p = PartBuilder(rank, rank, world_size=2)
        thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
        group = p.group("pp", (0, 1))
        for k in range(4):
            t = 1000 * k
            p.launched((thread, main), "kernel", "gemm", t + 10, t + 500, t, step=k)
            at = p.launched((thread, side), "comm", "ncclDevKernel_SendRecv", t + 500, t + 900 + (k == 3) * -380, t + 5, step=k)
            p.comm(at, "recv", group, k, None, bytes_out=4096, peer=1 - rank)
            p.step(k, t, t + 1000)
        made.append(p)
    (finding,) = rules(matched(shape(made, {}, world_size=2))).values()
    assert finding.rule == "pipeline.bubble"
    assert finding.seconds_per_step == pytest.approx(380e-6, rel=0.3)
    assert "dtprof.annotate" in finding.next

"""Context and sequence parallelism: splits of a sequence, rings, and operations that are latency."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape


def ring(work, *, counts=None, overlap=True, moving=200, turns=4, steps=3, layout=True):
    """A ring on CPUs: attention of ``work[r]`` us in ``counts[r]`` operators, beside it ``turns`` messages of ``moving`` us."""
    ranks = len(work)
    builders = []
    whole = max(work) + 2000 + (0 if overlap else turns * moving)
    for r in range(ranks):
        p = PartBuilder(r, r, world_size=ranks, backend="gloo")
        training, other = p.thread(), p.thread("gloo", 2, "pt_gloo_runloop")
        for step in range(steps):
            at = whole * step
            many = (counts or [20] * ranks)[r]
            for n in range(many):
                p.span(training, "cpu_op", "attention", at + n * work[r] // many, at + (n + 1) * work[r] // many, step=step)
            for turn in range(turns):
                begin = at + turn * moving if overlap else at + work[r] + turn * moving
                for op in ("send", "recv"):
                    event = p.span(other, "comm", f"gloo:{op}", begin, begin + moving, step=step)
                    after, before = (r + 1) % ranks, (r - 1) % ranks
                    p.comm(event, op, 0, None, 4096, peer=after if op == "send" else before)
            last = p.span(other, "comm", "gloo:all_reduce", at + whole - 2000 + work[r] - max(work), at + whole, step=step)
            p.comm(last, "all_reduce", 0, step, 1 << 20)
            p.step(step, at, at + whole)
        p.group("0", tuple(range(ranks)), backend="gloo", axis="cp")
        builders.append(p)
    groups = [{"name": "cp", "axis": "cp", "ranks": list(range(ranks))}] if layout else []
    return matched(shape(builders, {}, kind="dtprof", world_size=ranks, mesh={"cp": ranks} if layout else {}, groups=groups))


def rules(run):
    return {f.rule: f for f in findings(study_of(run))}


def test_a_contiguous_split_is_told_from_a_slow_rank():
    found = rules(ring([5000, 15000], counts=[10, 30]))
    finding = found["cp.unbalanced_split"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(5e-3, rel=0.01)
    assert not any(rule.startswith("straggler.") for rule in found)
    slow = rules(ring([10_000, 15_000], counts=[20, 20]))
    assert "cp.unbalanced_split" not in slow
    assert slow["straggler.compute_rank"].ranks == (1,)


def test_of_four_ranks_the_last_is_named():
    finding = rules(ring([2500, 7500, 12500, 17500], counts=[5, 15, 25, 35]))["cp.unbalanced_split"]
    assert finding.ranks == (3,)
    assert finding.seconds_per_step == pytest.approx(7.5e-3, rel=0.01)


def test_a_balanced_ring_that_overlaps_is_healthy():
    assert not any(rule.startswith(("cp.", "pipeline.", "ddp.")) for rule in rules(ring([10_000, 10_000])))


def test_without_a_layout_nothing_is_said_of_it():
    assert "cp.unbalanced_split" not in rules(ring([5000, 15000], counts=[10, 30], layout=False))


def test_a_ring_that_nothing_hides_is_found():
    finding = rules(ring([5000, 5000], overlap=False, moving=500))["cp.ring_overlap"]
    assert finding.seconds_per_step == pytest.approx(2e-3, rel=0.01)
    assert finding.evidence[0].count > 0


def sequence(us, count=40, size=4096, steps=3, axis="tp"):
    """All-gathers and reduce-scatters one by one between layers, and larger ones from which the latency shows."""
    builders = []
    for r in range(2):
        p = PartBuilder(r, r, world_size=2, device="NVIDIA A100-SXM4-80GB")
        thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
        p.group("tp", (0, 1), axis=axis)
        at, seq = 20, 0
        for step in range(steps):
            begin = at - 20
            for n in range(count + 3):
                for op in ("all_gather", "reduce_scatter"):
                    big = (size, us) if n < count else ((1 << 20) * (n - count + 1), us + 20 * (n - count + 1))
                    p.launched((thread, main), "kernel", "gemm", at, at + 30, at - 12, step=step)
                    event = p.launched((thread, side), "comm", op, at + 30, at + 30 + big[1], at - 10, step=step)
                    p.comm(event, op, 0, seq, big[0])
                    at, seq = at + 60 + big[1], seq + 1
            p.step(step, begin, at)
            at += 30
        builders.append(p)
    return matched(shape(builders, {}, world_size=2, mesh={"tp": 2}))


def test_sequence_parallelism_that_is_latency_is_told():
    finding = rules(sequence(20))["tp.sequence_parallel"]
    assert finding.severity == "low"
    assert finding.seconds_per_step == pytest.approx(40 * 20e-6, rel=0.1)


def test_the_same_along_another_axis_is_none_of_it():
    assert "tp.sequence_parallel" not in rules(sequence(20, axis="dp"))


def whole(norm_us, *, op="all_reduce", axis="tp", kernel="vectorized_layer_norm_kernel", failures=0):
    """Ten layers per step: a product of 500 us, a kernel that every rank repeats, and one large collective."""
    builders = []
    for r in range(2):
        p = PartBuilder(r, r, world_size=2, device="NVIDIA A100-SXM4-80GB")
        thread, main, side = p.thread(), p.stream(7), p.stream(20, "communication")
        p.group("tp", (0, 1), axis=axis)
        at, seq = 20, 0
        for step in range(3):
            begin = at - 20
            for n in range(10):
                p.launched((thread, main), "kernel", "gemm", at, at + 500, at - 12, step=step)
                p.launched((thread, main), "kernel", kernel, at + 500, at + 500 + norm_us, at + 490, step=step)
                at += 500 + norm_us
                size = (1 << 24) * (n + 1)
                event = p.launched((thread, side), "comm", op, at, at + 100 * (n + 1), at - 10, step=step)
                p.comm(event, op, 0, seq, size)
                at, seq = at + 100 * (n + 1) + 10, seq + 1
            p.step(step, begin, at)
            at += 30
        for metric, value in (("memory_allocated_peak", 2e9), ("memory_ooms", failures)):
            p.add("metrics", step=2, metric=metric, value=float(value))
        builders.append(p)
    return matched(shape(builders, {}, world_size=2, mesh={"tp": 2}))


def test_norms_that_every_rank_repeats_are_told_with_their_half():
    run = whole(200)
    finding = rules(run)["tp.sequence_parallel"]
    assert finding.seconds_per_step == pytest.approx(10 * 200e-6 / 2, rel=0.01)
    assert finding.bound and finding.ranks == (0, 1)
    step = 10 * 700 + 100 * 55 + 10 * 10
    assert finding.share == pytest.approx(1000 / step, rel=0.05)


@pytest.mark.parametrize(
    "other", [{"norm_us": 10}, {"axis": "dp"}, {"kernel": "elementwise_add"}, {"op": "all_gather"}], ids=str
)
def test_small_norms_other_axes_other_kernels_and_gathers_are_none_of_it(other):
    assert "tp.sequence_parallel" not in rules(whole(**{"norm_us": 200, **other}))


def test_a_full_memory_makes_it_worth_it_without_a_price():
    finding = rules(whole(10, failures=1))["tp.sequence_parallel"]
    assert finding.severity == "medium" and finding.seconds_per_step is None
    assert "2 requests failed" in finding.evidence[1].text.replace("\xa0", " ")

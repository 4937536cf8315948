"""The straggler test: false alarms and power by simulation, and what it says of whole runs."""

from __future__ import annotations

import numpy as np
import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.analyse.stragglers import excess_of
from dtprof.run import Part
from dtprof.table import Table
from tests.unit.kineto_maker import Trace, found, study, verdict
from tests.unit.shapes.build import PartBuilder, matched, shape

MS = 1e6


def noisy(rng, ranks, steps, spread):
    """Own times around 60 ms: heavy tails, as preempted processes have them."""
    return 60 * MS * (1 + spread * np.abs(rng.standard_t(3, (ranks, steps))))


@pytest.mark.parametrize(("ranks", "steps"), [(2, 2), (2, 3), (2, 6), (2, 20), (8, 2), (8, 3), (8, 20)])
@pytest.mark.parametrize("spread", [0.005, 0.03, 0.1])
def test_equal_ranks_raise_no_alarm(ranks, steps, spread):
    rng = np.random.default_rng(7)
    alarms = 0
    for _ in range(150):
        times = noisy(rng, ranks, steps, spread)
        alarms += any(excess_of(times, i, 6 * MS) is not None for i in range(ranks))
    assert alarms <= 2


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_slow_rank_is_found_with_its_price(ranks):
    rng = np.random.default_rng(7)
    hits, prices = 0, []
    for _ in range(100):
        times = noisy(rng, ranks, 20, 0.03)
        times[1] += 20 * MS
        got = excess_of(times, 1, 6 * MS)
        if got is not None:
            hits += 1
            prices.append(got.centre / MS)
            assert excess_of(times, 0, 6 * MS) is None
    assert hits >= 99
    assert np.percentile(np.abs(np.array(prices) / 20 - 1), 90) < 0.15


def training(rank, slow_us=0.0, host_us=0.0, input_us=0.0, late_us=0.0, steps=6, kernels=10, more=0):
    """A device job of two ranks: computing 10 ms, then an all-reduce that ends on both ranks together."""
    t = Trace(rank, 2)
    extra = {"slow": slow_us, "host": host_us, "input": input_us}
    longest = max(slow_us, host_us, input_us, 0.0)
    for k in range(steps):
        base = 40_000.0 * k + late_us
        t.step(k, base, base + 40_000)
        at = base + 100
        if rank == 1:
            t.range("enumerate(DataLoader)#_next", base, base + 50 + extra["input"])
            at += extra["host"] + extra["input"]
        t.range("forward", at, at + 14_500)
        for i in range(kernels + (more if rank == 1 else 0)):
            length = 1_000 * kernels / (kernels + (more if rank == 1 else 0)) + (extra["slow"] / kernels if rank == 1 else 0)
            t.run("gemm", at + i, at + 20 + i * 0.01 if i == 0 else at, at + length)
            at += length
        end = 40_000.0 * k + 100 + 10_000 + longest + 500
        t.run("ncclDevKernel_AllReduce", at - 5, at, end, stream=20,
              **{"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "Float", "Seq": k,
                 "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2})  # fmt: skip
    return t


def both(tmp_path, **fault):
    for rank in range(2):
        training(rank, **fault).write(tmp_path / f"rank{rank}.json")
    return tmp_path


def test_a_slow_device_is_named_with_phase_price_and_cause(tmp_path):
    path = both(tmp_path, slow_us=4_000.0)
    (finding,) = found(path)["straggler.compute_rank"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(4e-3, rel=0.05)
    assert "same work" in finding.why
    assert "forward pass" in finding.title
    text = verdict(study(path)).verdict
    assert "waiting for rank 1" in text
    assert "rank 0 waits" in text


def test_a_slow_host_is_told_from_a_slow_device(tmp_path):
    rules = found(both(tmp_path, host_us=4_000.0))
    assert "straggler.compute_rank" not in rules
    (finding,) = rules["straggler.host_rank"]
    assert finding.ranks == (1,) and finding.seconds_per_step == pytest.approx(4e-3, rel=0.05)


def test_a_slow_input_is_told_from_both(tmp_path):
    rules = found(both(tmp_path, input_us=4_000.0))
    assert not {"straggler.compute_rank", "straggler.host_rank"} & set(rules)
    (finding,) = rules["input.stall"]
    assert finding.ranks == (1,) and finding.seconds_per_step == pytest.approx(4e-3, rel=0.05)


def test_a_slow_clock_is_the_cause_where_it_was_read(tmp_path):
    lens = study(both(tmp_path, slow_us=4_000.0))
    for part, clock in ((0, 1700.0), (1, 1300.0)):
        rows = [{"ts": n, "metric": "sm_clock", "value": clock, "unit": "MHz", "device": 0} for n in range(5)]
        lens.run.store.put(part, "samples", Table.from_rows("samples", rows))
    (finding,) = [f for f in findings(lens) if f.rule == "straggler.compute_rank"]
    assert "1,300 MHz, that of its peers at 1,700 MHz" in finding.why


def test_healthy_ranks_have_no_straggler(tmp_path):
    rules = found(both(tmp_path))
    assert not any(r.startswith("straggler") for r in rules)


def test_one_captured_step_is_not_enough(tmp_path):
    path = both(tmp_path, slow_us=4_000.0, steps=2)
    s = study(path)
    assert s.result("stragglers").found == ()
    assert "complete steps" in s.result("stragglers").abstained


def staged(work, coordinates):
    """Four ranks on CPUs, two pipelines of two stages: us of work per step, a message, an all-reduce that ends at 20 ms."""
    builders = []
    for r, us in enumerate(work):
        p = PartBuilder(r, r, world_size=4, backend="gloo")
        training, other = p.thread(), p.thread("gloo", 2, "pt_gloo_runloop")
        group = p.group("0", (0, 1, 2, 3), backend="gloo")
        for step in range(5):
            at = 30_000 * step
            p.span(training, "cpu_op", "work", at, at + us, step=step)
            event = p.span(other, "comm", "gloo:send", at + 10, at + 20, step=step)
            p.comm(event, "send", group, None, 64, peer=r ^ 1)
            event = p.span(other, "comm", "gloo:all_reduce", at + us, at + 20_000, step=step)
            p.comm(event, "all_reduce", group, step, 1 << 20)
            p.step(step, at, at + 20_000)
        builders.append(p)
    mesh = {"dp": 2, "pp": 2} if coordinates else {}
    places = {str(r): {"dp": r // 2, "pp": r % 2} for r in range(4)} if coordinates else {}
    return study_of(matched(shape(builders, {}, kind="dtprof", world_size=4, mesh=mesh, coordinates=places)))


def test_ranks_of_one_stage_are_compared_with_each_other():
    """Stage 1 has more work than stage 0 and is none the slower for it; of its two ranks the second is slow."""
    (found_,) = staged([6_000, 10_000, 6_000, 14_000], True).result("stragglers").found
    assert found_.rank == 3
    assert found_.excess.centre == pytest.approx(4 * MS, rel=0.01)
    assert staged([6_000, 10_000, 6_000, 10_000], True).result("stragglers").found == ()


def test_messages_between_ranks_of_unknown_stages_make_it_abstain():
    assert "pipeline stages" in staged([6_000, 10_000, 6_000, 14_000], False).result("stragglers").abstained


def test_an_attempt_that_captured_nothing_does_not_forbid_the_comparison(tmp_path):
    """As after a restart: the new processes have steps of their own, and none of them traced."""
    lens = study(both(tmp_path, slow_us=4_000.0))
    for rank in (0, 1):
        lens.run.manifest.parts.append(Part(ordinal=2 + rank, rank=rank, world_size=2, attempt=1))
    (straggler,) = lens.result("stragglers").found
    assert straggler.rank == 1


def late_host(meeting):
    """Rank 1 computes 4 of 10 ms less, then its host does nothing for 20 ms; the ranks meet in between, or only at the end."""
    builders = []
    for rank in range(2):
        p = PartBuilder(rank, rank, world_size=2)
        training, other = p.thread(), p.thread("gloo", 2, "pt_gloo_runner")
        group, number = p.group("0", (0, 1), backend="gloo"), 0
        for step in range(8):
            base = 100_000 * step
            worked = base + (6_000 if rank else 10_000)
            p.span(training, "cpu_op", "work", base, worked, step=step)
            met = base + 10_500 if meeting else worked
            last = met + (30_000 if rank else 10_000)
            p.span(training, "cpu_op", "work", last - 10_000, last, step=step)
            end = (base + 10_500 + 30_500) if meeting else base + 36_500
            for begin, until in ((worked, met), (last, end)):
                if until > begin:
                    event = p.span(other, "comm", "gloo:all_reduce", begin, until, step=step)
                    p.comm(event, "all_reduce", group, number, 1 << 20)
                    number += 1
            p.step(step, base, end)
        builders.append(p)
    return study_of(matched(shape(builders, {}, kind="dtprof", world_size=2)))


@pytest.mark.parametrize(("meeting", "cost_ms"), [(True, 20), (False, 16)], ids=["in between", "at the end only"])
def test_computing_less_makes_up_for_a_late_host_only_where_nobody_waits_in_between(meeting, cost_ms):
    (finding,) = [f for f in findings(late_host(meeting)) if f.rule == "straggler.host_rank"]
    assert finding.ranks == (1,)
    assert "16" in finding.title
    assert finding.seconds_per_step == pytest.approx(cost_ms / 1e3, rel=0.01)

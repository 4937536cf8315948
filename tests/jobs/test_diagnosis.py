"""Faults with known truth in real jobs: found, placed and priced; and no alarm where there is none."""

from __future__ import annotations

import pytest

import dtprof
from dtprof.advise import findings, verdict
from dtprof.analyse import study_of

# what a busy machine adds to a planted time in a single run; the slow tests hold five runs to 15%
BUSY = 0.5
DDP = ["-m", "dtprof_sample_jobs.ddp", "--steps", "30", "--capture", "5:25"]


def rules_of(study):
    return {f.rule: f for f in findings(study)}


@pytest.fixture(scope="module")
def slow_rank(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("slow") / "run"
    run(2, [*DDP, "--inject", "slow_rank=1:20ms", "--out", str(out)])
    return study_of(dtprof.open_run(out))


def test_the_planted_rank_is_named_with_its_milliseconds(slow_rank):
    finding = rules_of(slow_rank)["straggler.compute_rank"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(0.020, rel=BUSY)
    lines = verdict(slow_rank)
    assert "waiting for rank 1" in lines.verdict
    assert "forward pass" in lines.why
    assert "same work" in lines.why


def test_every_collective_of_a_gloo_job_is_matched_by_its_sequence(slow_rank):
    operations = slow_rank.result("comm").operations
    assert len(operations) >= 2 * 20
    assert {(o.matched_by, o.group, o.n, o.n_present) for o in operations} == {("seq", "0,1", 2, 2)}
    assert all(o.bytes and o.bytes_known == "exact" for o in operations)


def test_accounting_sums_to_every_step(slow_rank):
    for part in slow_rank.result("accounting").parts:
        assert [s.step for s in part.steps] == list(range(5, 25))
        assert all(sum(s.accounting.values()) == s.dur_ns for s in part.steps)


def test_tables_read_back_are_the_tables_that_were_made(slow_rank):
    again = dtprof.open_run(slow_rank.run.path)
    assert type(again.store).__name__ == "ParquetStore"
    fresh = dtprof.open_run(slow_rank.run.path, cache=False)
    for name in ("events", "comm", "steps", "grads", "buckets", "samples"):
        a, b = again.table(name, 0), fresh.table(name, 0)
        assert len(a) == len(b) > 0
        assert a.row(len(a) - 1) == b.row(len(b) - 1)
    assert len(again.table("collectives")) == len(fresh.table("collectives"))


@pytest.fixture(scope="module")
def faulty(run, scripts, tmp_path_factory):
    def go(fault):
        out = tmp_path_factory.mktemp(fault) / "run"
        run(2, [str(scripts / "faulty.py"), str(out), fault])
        return study_of(dtprof.open_run(out))

    return go


def test_a_slow_backward_hidden_by_all_reduce_is_named(faulty):
    found = [f for f in findings(faulty("slow_backward")) if f.rule.startswith("straggler.")]
    assert [f.ranks for f in found] == [(1,)]
    assert "backward pass" in found[0].title
    assert found[0].seconds_per_step == pytest.approx(0.050, rel=BUSY)


def test_a_heavy_first_layer_is_the_tail_bucket_not_the_flag(faulty):
    study = faulty("heavy_first_layer_flag")
    rules = rules_of(study)
    flag = rules["ddp.find_unused_parameters"]
    assert flag.severity == "low"
    assert flag.seconds_per_step is None
    if "comm.exposed" in rules:
        assert "last bucket" in rules["ddp.buckets"].title
    assert verdict(study).verdict != flag.title


def test_ranks_that_join_early_are_not_called_fast(faulty):
    study = faulty("uneven_inputs")
    assert not any(f.rule.startswith("straggler.") for f in findings(study))
    assert [len(study.run.table("steps", p.ordinal)) for p in study.run.parts] == [3, 6]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(10))
def test_ten_healthy_runs_have_no_straggler(run, tmp_path, attempt):
    run(2, [*DDP, "--seed", str(attempt), "--out", str(tmp_path / "run")])
    assert not [f for f in findings(study_of(dtprof.open_run(tmp_path / "run"))) if f.rule.startswith("straggler.")]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(5))
def test_five_planted_runs_are_all_named(run, tmp_path, attempt):
    run(2, [*DDP, "--seed", str(attempt), "--inject", "slow_rank=1:20ms", "--out", str(tmp_path / "run")])
    finding = rules_of(study_of(dtprof.open_run(tmp_path / "run")))["straggler.compute_rank"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(0.020, rel=0.15)

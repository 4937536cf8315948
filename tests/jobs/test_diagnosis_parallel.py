"""Faults of jobs with several ranks per model: found, placed and priced in real runs; and nothing of it in healthy ones."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.jobs.bubbles import EMULATION

pytestmark = pytest.mark.slow

MINE = (
    "pipeline.",
    "moe.",
    "tp.",
    "cp.",
    "hang.",
    "ddp.join",
    "comm.barrier",
    "straggler.",
    "overlap.fsdp_exposed",
    "comm.group",
)


@pytest.fixture(scope="module")
def job(run, tmp_path_factory):
    def go(name, *words, ranks=2, steps="9", capture="2:8"):
        folder = tmp_path_factory.mktemp(name)
        (folder / "stages.toml").write_text(EMULATION.format(stages=ranks))
        words = [w.replace("EMULATION", str(folder / "stages.toml")) for w in words]
        window = ["--steps", steps, "--capture", capture, "--out", str(folder / "run")]
        run(ranks, ["-m", f"dtprof_sample_jobs.{name}", *words, *window])
        study = study_of(dtprof.open_run(folder / "run"))
        return study, {f.rule: f for f in findings(study) if f.rule.startswith(MINE)}

    return go


PIPELINE = ("--emulate", "EMULATION", "--microbatches", "8")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_healthy_pipeline_has_the_bubble_of_theory_and_no_finding(job, schedule):
    study, rules = job("pipeline", *PIPELINE, "--schedule", schedule)
    (pipeline,) = study.result("pipeline").pipelines
    assert pipeline.bubble == pytest.approx(1 / 9, abs=0.02)
    assert rules == {}
    shares = study.result("accounting").mean_shares()
    assert shares["comm_transfer_ns"] + shares["comm_unsplit_ns"] < 0.02


def test_the_slow_stage_is_named_with_its_milliseconds(job):
    _, rules = job("pipeline", *PIPELINE, "--inject", "stage_imbalance=1:30ms")
    finding = rules["pipeline.imbalance"]
    assert finding.ranks == (1,) and "Stage 1" in finding.title and "forward" in finding.title
    assert finding.seconds_per_step == pytest.approx(8 * 0.030, rel=0.15)


def test_few_micro_batches_are_named(job):
    _, rules = job("pipeline", *PIPELINE, "--inject", "few_microbatches=all:2")
    assert rules["pipeline.microbatches"].seconds_per_step == pytest.approx(0.180, rel=0.15)


def test_the_hot_expert_is_named_with_its_rank(job):
    words = ("--experts", "4", "--experts-per-token", "1", "--expert-us", "60", "--layers", "4")
    _, rules = job("moe", *words, "--inject", "router_skew=3:0.8")
    finding = rules["moe.expert_balance"]
    assert finding.ranks == (1,) and "Expert 3" in finding.title


def test_even_experts_are_left_alone(job):
    _, rules = job("moe", "--experts", "4", "--expert-us", "20", "--layers", "4")
    assert not [r for r in rules if r.startswith("moe.")]


def test_a_contiguous_split_is_named(job):
    _, rules = job("context_parallel", "--layers", "3", "--block-ms", "60", "--inject", "unbalanced_split=all")
    finding = rules["cp.unbalanced_split"]
    assert finding.ranks == (1,)
    # of 60 ms per block in forward and 120 in backward rank 0 has a quarter, rank 1 three
    assert finding.seconds_per_step == pytest.approx(3 * 0.180 / 4, rel=0.15)


def test_a_zigzag_ring_is_left_alone(job):
    _, rules = job("context_parallel", "--layers", "3", "--block-ms", "60")
    assert not [r for r in rules if r.startswith(("cp.", "ddp.", "pipeline."))]


def test_a_barrier_in_every_step_is_named(job):
    _, rules = job("ddp", "--layers", "2", "--inject", "barrier_every_step=all")
    assert "comm.barrier" in rules


def test_a_rank_that_runs_out_of_data_is_named(job):
    _, rules = job("ddp", "--layers", "2", "--inject", "out_of_data=1:4")
    finding = rules["ddp.join"]
    assert finding.ranks == (1,) and "4 of 18 rank-steps" in finding.title


def test_a_slow_worker_is_named(job):
    _, rules = job("parameter_server", "--layers", "2", "--inject", "slow_rank=2:80ms", ranks=3)
    finding = rules["straggler.slow_worker"]
    assert finding.ranks == (2,)
    assert finding.seconds_per_step == pytest.approx(0.080, rel=0.2)

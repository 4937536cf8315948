"""Planted faults that need no trace, in real jobs: named, placed, priced; and healthy jobs without such findings."""

from __future__ import annotations

import numpy as np
import pytest

import dtprof
from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.analyse.host_steps import metric, usable

pytestmark = pytest.mark.slow

DDP = ["-m", "dtprof_sample_jobs.ddp", "--emulate", "small"]
# what this file is about
MINE = ("host.gc", "host.sync", "input.", "checkpoint.", "training.", "memory.", "gpu.", "compute.")


@pytest.fixture
def found(run, tmp_path):
    """Run the job with these words and return the study and its findings by rule."""

    def go(*words, ranks=2, job=DDP):
        run(ranks, [*job, *words, "--out", str(tmp_path / "run")])
        study = study_of(dtprof.open_run(tmp_path / "run"))
        return study, {f.rule: f for f in findings(study)}

    return go


def forward_ms(study, part):
    """Mean forward phase of the steps that nothing was traced in, ms."""
    known = usable(study.run, part)
    return float(np.mean([ns for step, ns in metric(study.run, part, "phase_forward").items() if step in known])) / 1e6


def test_garbage_collection(found):
    study, rules = found("--steps", "40", "--capture", "5:8", "--inject", "gc=1:20ms")
    assert rules["host.gc"].ranks == (1,)
    # a collection may take longer than was asked for: the truth is what the forward pass takes longer than the other rank's
    truth = forward_ms(study, 1) - forward_ms(study, 0)
    assert truth >= 15
    assert rules["host.gc"].seconds_per_step * 1e3 == pytest.approx(truth, rel=0.15)


def test_a_checkpoint_in_every_fifth_step(found):
    _, rules = found("--steps", "40", "--capture", "none", "--inject", "checkpoint_stall=1:60ms")
    stall = rules["checkpoint.stall"]
    assert stall.ranks == (1,)
    assert stall.seconds_per_step == pytest.approx(0.060 / 5, rel=0.15)
    assert stall.steps[:2] == (4, 9)


def test_memory_that_one_rank_keeps(found):
    _, rules = found("--steps", "120", "--capture", "none", "--inject", "memory_creep=1:0.5")
    creep = rules["memory.creep"]
    assert creep.ranks == (1,)
    assert "512.0 KiB" in creep.title.replace("\xa0", " ") or "5" in creep.title
    assert creep.severity == "medium" and creep.seconds_per_step is None


def test_a_forgotten_epoch_and_a_set_one(found):
    corpus = ("--steps", "40", "--capture", "none", "--data", "corpus", "--batch", "16")
    _, rules = found(*corpus, "--inject", "epoch_not_set=all")
    assert rules["training.sampler_epoch"].ranks == (0, 1)
    assert rules["training.sampler_epoch"].seconds_per_step is None


def test_a_set_epoch_is_healthy(found):
    study, rules = found("--steps", "40", "--capture", "none", "--data", "corpus", "--batch", "16")
    assert study.result("training").epochs
    assert "training.sampler_epoch" not in rules


FP16 = (
    "-m",
    "dtprof_sample_jobs.ddp",
    "--steps",
    "40",
    "--capture",
    "none",
    "--precision",
    "fp16",
    "--clip",
    "1",
    "--layers",
    "1",
)


def test_clipping_before_unscaling(found):
    _, rules = found("--inject", "clip_before_unscale=all", job=FP16)
    assert rules["training.clip_order"].severity == "high"
    assert "40 clippings" in rules["training.clip_order"].evidence[0].text.replace("\xa0", " ")


def test_overflows_after_the_start(found):
    _, rules = found("--inject", "fp16_overflow=all:4", job=FP16)
    skips = rules["training.scaler_skips"]
    assert set(skips.steps) >= {7, 11, 15}
    assert "training.clip_order" not in rules


def test_healthy_loss_scaling(found):
    study, rules = found(job=FP16)
    assert study.result("training").clips == (0, 40)
    assert not {r for r in rules if r.startswith("training.")}


def test_a_rank_that_runs_out_of_data(found):
    _, rules = found("--steps", "30", "--capture", "none", "--inject", "out_of_data=1:10")
    assert rules["input.uneven"].ranks == (1,)


def test_the_noise_scale_is_read(found):
    study, _ = found(
        "--steps", "30", "--capture", "none", "--noise-scale", job=("-m", "dtprof_sample_jobs.ddp", "--layers", "1")
    )
    result = study.result("training")
    assert result.batch == 8
    assert result.noise is None or result.noise > 0


def test_written_out_attention_and_the_fused_one(found):
    wide = ("--steps", "12", "--capture", "5:10", "--seq", "256", "--dim", "64", "--layers", "2")
    study, rules = found(*wide, "--attention", "math", job=("-m", "dtprof_sample_jobs.ddp"))
    assert study.result("attention").layers == 2
    assert rules["compute.fused_attention"].bound


def test_fused_attention_is_left_alone(found):
    wide = ("--steps", "12", "--capture", "5:10", "--seq", "256", "--dim", "64", "--layers", "2")
    study, rules = found(*wide, job=("-m", "dtprof_sample_jobs.ddp"))
    assert study.result("attention").layers == 0
    assert "compute.fused_attention" not in rules


@pytest.mark.parametrize(("mode", "again"), [("none", False), ("full", True), ("selective", True)])
def test_what_is_computed_again_is_told_apart(found, mode, again):
    small = ("--steps", "10", "--capture", "5:8", "--layers", "2", "--checkpointing", mode)
    study, _ = found(*small, job=("-m", "dtprof_sample_jobs.ddp"))
    for part in study.result("accounting").parts:
        for step in part.steps:
            assert (step.recompute_ns > 0) == again
            assert step.recompute_ns < step.accounting["compute_ns"] / 2


def test_emulated_layers_that_run_in_both_passes_cannot_be_told(found):
    study, _ = found("--steps", "10", "--capture", "5:8", "--checkpointing", "full")
    assert {s.recompute_ns for p in study.result("accounting").parts for s in p.steps} == {None}


def test_code_that_is_compiled_again(run, scripts, tmp_path):
    run(2, [str(scripts / "compiled.py"), str(tmp_path / "run")])
    rules = {f.rule: f for f in findings(study_of(dtprof.open_run(tmp_path / "run")))}
    again = rules["compute.recompiles"]
    assert (again.ranks, again.steps) == ((0,), (4, 6))
    assert again.seconds_per_step > 0
    assert any("size" in e.text for e in again.evidence[1:])
    assert rules["compute.graph_breaks"].severity == "low"
    assert not {r for r in rules if r.startswith("straggler.")}


@pytest.mark.parametrize("seed", range(3))
def test_healthy_jobs_have_none_of_these(found, seed):
    _, rules = found("--steps", "60", "--seed", str(seed))
    assert not {r for r in rules if r.startswith(MINE)}

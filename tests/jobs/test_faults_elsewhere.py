"""Faults of the pipeline, and the common ones in jobs other than ddp, change what a run measures by their documented truth."""

import json

import pytest

pytest.importorskip("torch")

import dtprof
from tests.jobs.bubbles import bubble_share, passes_of

MS, FORWARD, BACKWARD, MICRO, FEW = 30, 60, 120, 8, 2
STEPS = range(1, 5)
LAYERS = """
width_bytes = 1024
[[layers]]
name = "layer"
repeat = {repeat}
forward_ms = {forward}
backward_ms = {backward}
tensors = [4096]
"""
PIPELINE = {
    "healthy": [],
    "stage_imbalance": ["--inject", f"stage_imbalance=1:{MS}ms"],
    "few_microbatches": ["--inject", f"few_microbatches=all:{FEW}"],
    "slow_rank": ["--inject", f"slow_rank=1:{MS}ms"],
}
FSDP = {
    "healthy": [],
    "slow_rank": ["--inject", f"slow_rank=1:{MS}ms"],
    "slow_backward": ["--inject", f"slow_backward=1:{MS}ms"],
    "fsdp1": ["--strategy", "fsdp1", "--inject", f"slow_rank=1:{MS}ms"],
    "zero1": ["--strategy", "zero1", "--inject", f"slow_backward=1:{MS}ms"],
}


def measured(run, scripts, folder, job, runs, emulation, words=()):
    (folder / "layers.toml").write_text(LAYERS.format(**emulation))
    window = ["--steps", str(STEPS.stop + 1), "--capture", f"{STEPS.start}:{STEPS.stop}"]
    words = ["--emulate", str(folder / "layers.toml"), *window, *words]
    plan = [
        {"name": name, "module": f"dtprof_sample_jobs.{job}", "words": [*words, *more, "--out", str(folder / name)]}
        for name, more in runs.items()
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(folder / "plan.json")])
    return {name: dtprof.open_run(folder / name) for name in runs}


@pytest.fixture(scope="module")
def pipelines(run, scripts, tmp_path_factory):
    emulation = {"repeat": 2, "forward": FORWARD, "backward": BACKWARD}
    words = ["--microbatches", str(MICRO)]
    found = measured(run, scripts, tmp_path_factory.mktemp("pipeline"), "pipeline", PIPELINE, emulation, words)
    return {name: passes_of(run, STEPS) for name, run in found.items()}


@pytest.fixture(scope="module")
def sharded(run, scripts, tmp_path_factory):
    emulation = {"repeat": 3, "forward": 2, "backward": 4}
    return measured(run, scripts, tmp_path_factory.mktemp("fsdp"), "fsdp", FSDP, emulation)


def least_ms(steps, kind, rank):
    """Least time of a rank's passes of a kind: what else the machine does only adds."""
    return min(p.end - p.start for passes in steps for p in passes[rank] if p.key[0] == kind) / 1e6


def more(pipelines, name, kind, rank):
    return least_ms(pipelines[name], kind, rank) - least_ms(pipelines["healthy"], kind, rank)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stage_imbalance", "slow_rank"])
def test_every_forward_pass_of_the_stage_takes_as_much_longer_as_was_asked(pipelines, name):
    assert more(pipelines, name, "F", 1) == pytest.approx(MS, rel=0.1)
    for kind, rank in (("F", 0), ("B", 0), ("B", 1)):
        assert abs(more(pipelines, name, kind, rank)) < MS / 10


@pytest.mark.slow
def test_few_microbatches_make_the_bubble_of_so_few(pipelines):
    for name, micro in (("healthy", MICRO), ("few_microbatches", FEW)):
        steps = pipelines[name]
        assert {p.key[2] for passes in steps for mine in passes.values() for p in mine} == set(range(micro))
        assert bubble_share(steps, FORWARD * 1e6) == pytest.approx(1 / (micro + 1), rel=0.1)


def planted_ms(run, rank):
    """Least milliseconds of planted operators in a step."""
    events = run.table("events", rank)
    rows = events.take(events.is_("name", "dtprof_lab::slow_compute"))
    return min(rows["dur"][rows["step"] == step].sum() / 1e6 for step in STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FSDP)
def test_a_sharded_rank_is_slow_by_what_was_asked(sharded, name):
    assert planted_ms(sharded[name], 0) == 0
    assert planted_ms(sharded[name], 1) == (pytest.approx(MS, rel=0.1) if name != "healthy" else 0)

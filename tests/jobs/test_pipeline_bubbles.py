"""Bubbles of sleep-emulated pipelines (20 ms forward and 40 ms backward per stage, 8 micro-batches) are those of theory."""

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof_sample_jobs import pipeline
from tests.jobs.bubbles import bubble_share, passes_of, simulated_ns, usual_ns

MS = 1_000_000
FORWARD, BACKWARD, MICRO = 20 * MS, 40 * MS, 8
STEPS = range(2, 14)
EMULATION = """
width_bytes = 1024
[[layers]]
name = "stage"
repeat = {stages}
forward_ms = 20
backward_ms = 40
tensors = [1024]
"""


def theory(schedule, ranks, steps):
    """Share of the bubble in the step: (p-1)/(m+p-1); interleaved (p-1)/(v m) of the rest; else the simulated schedule's.

    A parted schedule has bubbles of the size of a single pass, so that the simulation takes the passes' own usual times. torch
    leaves the first stage's input gradient to its weight pass.
    """
    stages = pipeline.stages_of(schedule, ranks)
    if schedule in ("gpipe", "1f1b"):
        return (ranks - 1) / (MICRO + ranks - 1)
    ideal = MICRO * (FORWARD + BACKWARD) * stages // ranks
    if schedule == "interleaved":
        ratio = (ranks - 1) / (stages // ranks * MICRO)
        return ratio / (1 + ratio)
    waiting = simulated_ns(steps[0], usual_ns(steps), stages)
    return waiting / (waiting + ideal)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zerobubble", "zbv"])
def test_bubbles_are_those_of_theory(run, tmp_path, schedule, ranks):
    stages = pipeline.stages_of(schedule, ranks)
    (tmp_path / "stages.toml").write_text(EMULATION.format(stages=stages))
    job = ["-m", "dtprof_sample_jobs.pipeline", "--schedule", schedule, "--emulate", str(tmp_path / "stages.toml")]
    window = ["--steps", str(STEPS.stop + 1), "--capture", f"{STEPS.start}:{STEPS.stop}"]
    run(ranks, [*job, "--microbatches", str(MICRO), *window, "--out", str(tmp_path / "run")])
    measured = dtprof.open_run(tmp_path / "run")
    steps = [passes_of(measured, step) for step in STEPS]
    # a message takes about a millisecond, which a parted schedule of four ranks pays again and again
    tolerance = 0.2 if ranks == 4 and schedule in ("zerobubble", "zbv") else 0.1
    assert bubble_share(steps) == pytest.approx(theory(schedule, ranks, steps), rel=tolerance)

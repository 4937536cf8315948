"""Bubbles of sleep-emulated pipelines (20 ms forward and 40 ms backward per stage, 8 micro-batches) are those of theory."""

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof_sample_jobs import pipeline
from tests.jobs.bubbles import bubble_share, passes_of, simulated_ns

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


def durations(stages):
    """What an emulated pass takes. torch leaves the first stage's input gradient to its weight pass: nobody waits for it."""
    out = {}
    for stage in range(stages):
        out |= {("F", stage): FORWARD, ("B", stage): BACKWARD}
        out |= {("I", stage): BACKWARD // 2 if stage else 0, ("W", stage): BACKWARD // 2 if stage else BACKWARD}
    return out


def theory(schedule, ranks, passes):
    """Share of the bubble in the step: (p-1)/(m+p-1); interleaved (p-1)/(v m) of the rest; else the simulated schedule's."""
    stages = pipeline.stages_of(schedule, ranks)
    if schedule in ("gpipe", "1f1b"):
        return (ranks - 1) / (MICRO + ranks - 1)
    ideal = MICRO * (FORWARD + BACKWARD) * stages // ranks
    if schedule == "interleaved":
        ratio = (ranks - 1) / (stages // ranks * MICRO)
        return ratio / (1 + ratio)
    waiting = simulated_ns(passes, durations(stages), stages)
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
    assert bubble_share(steps) == pytest.approx(theory(schedule, ranks, steps[0]), rel=0.1)

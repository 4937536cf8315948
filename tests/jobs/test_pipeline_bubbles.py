"""Bubbles of sleep-emulated pipelines are those of theory: 60 ms forward and 120 ms backward per stage, 8 micro-batches."""

from itertools import chain

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof_sample_jobs import pipeline
from tests.jobs.bubbles import EMULATION, bubble_share, order_of, passes_of, simulated_share

FORWARD, BACKWARD, MICRO = 60_000_000, 120_000_000, 8
STEPS = range(1, 6)
RANKS = [2, 4]


def theory(schedule, ranks):
    """Share of the bubble in the step: (p-1)/(m+p-1) with one stage per rank; else that of the schedule's own order."""
    if schedule in pipeline.ONE_STAGE:
        return (ranks - 1) / (MICRO + ranks - 1)
    return simulated_share(order_of(schedule, ranks, MICRO), pipeline.stages_of(schedule, ranks), FORWARD, BACKWARD)


@pytest.mark.parametrize("ranks", RANKS)
def test_simulated_orders_have_the_bubbles_of_the_papers(ranks):
    """Interleaved: (p-1)/v of m, Narayanan et al. 2021. Zero bubble, ZB-H1: (p-1)(F+I-W) per rank, Qi et al. 2024, table 1."""
    fewer = ranks - 1
    assert simulated_share(order_of("gpipe", ranks, MICRO), ranks, 1, 2) == pytest.approx(fewer / (MICRO + fewer))
    assert theory("interleaved", ranks) == pytest.approx(fewer / (2 * MICRO + fewer))
    assert theory("zerobubble", ranks) == pytest.approx(fewer * FORWARD / (2 * MICRO * (FORWARD + BACKWARD) + fewer * FORWARD))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_bubbles_are_those_of_theory(run, tmp_path, schedule, ranks):
    (tmp_path / "stages.toml").write_text(EMULATION.format(stages=pipeline.stages_of(schedule, ranks)))
    job = ["-m", "dtprof_sample_jobs.pipeline", "--schedule", schedule, "--emulate", str(tmp_path / "stages.toml")]
    window = ["--steps", str(STEPS.stop + 1), "--capture", f"{STEPS.start}:{STEPS.stop}"]
    run(ranks, [*job, "--microbatches", str(MICRO), *window, "--out", str(tmp_path / "run")])
    steps = passes_of(dtprof.open_run(tmp_path / "run"), STEPS)
    if schedule not in pipeline.ONE_STAGE:
        order = order_of(schedule, ranks, MICRO)
        assert {r: [p.key for p in mine] for r, mine in steps[0].items()} == {r: [*chain(*each)] for r, each in order.items()}
    share = bubble_share(steps, FORWARD)
    print(f"{schedule} on {ranks} ranks: {share:.4f}, {share / theory(schedule, ranks):.3f} of theory")
    assert share == pytest.approx(theory(schedule, ranks), rel=0.1)

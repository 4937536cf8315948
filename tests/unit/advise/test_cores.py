"""Threads that are ready and have no core: named from a tenth of the step on, and never for more than the step."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape

STEP_US, STEPS = 10_000, 8


def found(*delays_ms):
    """The rule's finding in a job whose ranks wait so long for a core in each step; None: it was not recorded."""
    builders = []
    for rank, delay in enumerate(delays_ms):
        made = PartBuilder(rank, rank, world_size=len(delays_ms))
        thread = made.thread()
        for step in range(STEPS):
            begin = step * STEP_US
            made.span(thread, "cpu_op", "aten::mm", begin, begin + 9_000, step=step)
            made.step(step, begin, begin + STEP_US, kind="train")
            if delay is not None:
                made.add("metrics", step=step, metric="run_delay", value=delay * 1e6, unit="ns")
        builders.append(made)
    study = study_of(matched(shape(builders, {}, "dtprof", world_size=len(delays_ms))))
    return next((f for f in findings(study) if f.rule == "host.no_core"), None)


def test_the_ranks_without_cores_are_named_with_what_they_wait():
    told = found(4.0, 0.5, 3.0)
    assert told.ranks == (0, 2)
    assert told.seconds_per_step == pytest.approx(3.5e-3)
    assert told.bound


def test_waiting_between_steps_is_no_part_of_them():
    told = found(25.0, 0.0)
    assert told.seconds_per_step == pytest.approx(10e-3)
    assert told.share == pytest.approx(1.0)


@pytest.mark.parametrize("delays", [(0.9, 0.2), (None, None)])
def test_little_or_nothing_recorded_is_silent(delays):
    assert found(*delays) is None

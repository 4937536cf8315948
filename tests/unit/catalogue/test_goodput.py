"""Checkpoint intervals and goodput, against a search over the interval and a simulation of failures."""

import numpy as np
import pytest

from dtprof.catalogue.goodput import daly, goodput, job_mtbf_s, young

HOUR = 3600.0


def test_youngs_interval_is_the_square_root() -> None:
    assert young(120, 24 * HOUR) == pytest.approx(np.sqrt(2 * 120 * 24 * HOUR))


@pytest.mark.parametrize(("save", "mtbf"), [(30.0, 6 * HOUR), (300.0, 3 * HOUR), (600.0, HOUR)])
def test_dalys_interval_is_where_the_goodput_is_largest(save: float, mtbf: float) -> None:
    intervals = np.geomspace(save / 10, mtbf * 3, 20_000)
    best = intervals[np.argmax([goodput(float(t), save, mtbf) for t in intervals])]
    assert daly(save, mtbf) == pytest.approx(best, rel=0.01)
    assert abs(daly(save, mtbf) / best - 1) <= abs(young(save, mtbf) / best - 1)


def test_a_save_longer_than_two_failures_is_done_as_rarely_as_failures_come() -> None:
    assert daly(10 * HOUR, HOUR) == HOUR
    assert goodput(HOUR, 1e7, HOUR) == 0.0


def test_goodput_is_that_of_simulated_failures() -> None:
    rng = np.random.default_rng(0)
    interval, save, mtbf, restart = 1800.0, 120.0, 2 * HOUR, 300.0
    kept, clock, failure = 0.0, 0.0, rng.exponential(mtbf)
    for _ in range(200_000):
        if clock + interval + save <= failure:
            clock, kept = clock + interval + save, kept + interval
            continue
        clock = failure
        # Daly's model: a failure may also come during the restart, which then begins anew
        while (again := rng.exponential(mtbf)) < restart:
            clock += again
        clock += restart
        failure = clock - restart + again
    assert goodput(interval, save, mtbf, restart) == pytest.approx(kept / clock, rel=0.01)


def test_a_job_fails_with_any_of_its_devices() -> None:
    assert job_mtbf_s(50_000 * HOUR, 1000) == 50 * HOUR


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_no_interval_for_what_cannot_be(bad: float) -> None:
    with pytest.raises(ValueError, match="has to be above 0"):
        young(bad, 1)

"""A rank that is longer because its experts have more tokens is no slow rank."""

import numpy as np
import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.model.moe.excess import by_tokens
from tests.unit.model.test_moe import MS, PER_TOKEN, STEPS, by_rank, job


def slow(run):
    return {f.ranks for f in findings(study_of(run)) if f.rule.startswith("straggler.")}


def test_tokens_beyond_the_others_by_the_time_that_they_take():
    more = np.mean([b - a for a, b in map(by_rank, STEPS)])
    assert by_tokens(job()) == pytest.approx({0: -more * PER_TOKEN * MS, 1: more * PER_TOKEN * MS}, rel=0.01)


def test_without_counters_or_with_tokens_that_are_all_alike_nothing_is_known():
    assert by_tokens(job(tokens=False)) == {}
    assert by_tokens(job(loads=((30, 30, 30, 30),) * 5)) == {}


def test_such_a_rank_is_not_called_slow_and_one_without_counters_is():
    assert slow(job(tokens=False)) == {(1,)}
    assert slow(job()) == set()

"""What a baseline keeps of a run."""

import pytest

from dtprof.analyse import study_of
from dtprof.check.metrics import measure
from tests.unit.model.test_pipeline import run_of, seen


@pytest.mark.parametrize(("ranks", "micro"), [(2, 4), (2, 8), (4, 8)])
def test_the_bubble_of_a_pipeline_is_a_share(ranks, micro):
    """(p - 1) / (m + p - 1) of the whole (Narayanan et al. 2021)."""
    bubble = measure(study_of(run_of(seen(ranks, micro))[0]))["share.pipeline_bubble"]
    assert bubble.value == pytest.approx((ranks - 1) / (micro + ranks - 1), abs=1e-6)
    assert (bubble.kind, bubble.worse) == ("share", "more")


def test_passes_that_follow_each_other_late_are_bubble_as_well():
    # 8 forward passes of 20 ms and 8 backward ones of 40 ms, 2 ms between two; rank 0 waits for one pass of each on rank 1
    late = measure(study_of(run_of(seen(2, 8, between=2.0))[0]))["share.pipeline_bubble"].value
    assert 1 / 9 < late < 1 / 9 + 2 / 30

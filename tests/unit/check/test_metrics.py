"""What a baseline keeps of a run."""

import pytest

from dtprof.analyse import study_of
from dtprof.check.metrics import measure
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table
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


@pytest.mark.parametrize(("recorded", "kept"), [([0.4, 0.41, 0.35], 0.4), ([40.0, 41.0], None), ([], None)])
def test_mfu_that_the_job_records_is_a_share(recorded, kept):
    steps = Table.from_rows("steps", [{"step": k, "host_ts": k * 10**9, "host_dur": 10**9} for k in range(3)])
    rows = [{"step": k, "metric": "mfu", "value": value, "unit": ""} for k, value in enumerate(recorded)]
    tables = {("steps", 0): steps, ("metrics", 0): Table.from_rows("metrics", rows)}
    run = Run(Manifest(run_id="m", parts=[Part(ordinal=0, rank=0, world_size=1)]), MemoryStore(tables), "", "dtprof")
    found = measure(study_of(run)).get("share.mfu")
    assert (None if found is None else found.value) == kept
    assert found is None or found.worse == "less"

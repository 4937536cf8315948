"""Holistic Trace Analysis as a second opinion: equal where it is right, and every difference has a name.

Its habits: it leaves out the last ProfilerStep, it keeps only device operations whose launch is in the file, it rounds
to whole microseconds, and it knows communication by the names of NCCL kernels alone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings

import numpy as np
import pytest

import dtprof
from dtprof import intervals
from dtprof.analyse import study_of
from dtprof.analyse.covers import PartView

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def second_opinion(tmp_path_factory):
    """files -> (temporal breakdown, overlap) by HTA, rank -> row."""
    if importlib.util.find_spec("hta") is None:
        message = "HolisticTraceAnalysis is not installed (make setup installs it)"
        if os.environ.get("DTPROF_TRUTH_REQUIRED") == "1":
            pytest.fail(message)
        pytest.skip(message)
    folder = str(tmp_path_factory.mktemp("hta"))

    def ask(files):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            try:
                from hta.trace_analysis import TraceAnalysis

                analysis = TraceAnalysis(trace_files=files, trace_dir=folder)
                breakdown = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
                overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
            finally:
                logging.disable(logging.NOTSET)
        return breakdown, overlap

    return ask


def totals(view, rows):
    """(idle, compute, other than compute, span) of these device events in us."""
    every, compute = view.cover(rows), view.cover(rows[view.events.is_("kind", "kernel")[rows]])
    span = int(view.end[rows].max() - view.events["ts"][rows].min())
    busy, computing = intervals.total(every), intervals.total(compute)
    return tuple(x / 1000 for x in (span - busy, computing, busy - computing, span))


COLUMNS = ["idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)"]


def test_eight_ranks_agree_exactly(truth, second_opinion):
    files = {r: str(next((truth / "traces/kineto/dlrm_8rank_v100").glob(f"worker{r}_*"))) for r in range(8)}
    breakdown, overlap = second_opinion(files)
    for rank, path in files.items():
        device = study_of(dtprof.open_run(path)).result("accounting").parts[0].device
        ours = device.idle_ns, device.compute_ns, device.busy_ns - device.compute_ns, device.span_ns
        assert [x / 1000 for x in ours] == breakdown.loc[rank, COLUMNS].tolist(), rank
        share = 100 * device.comm_overlapped_by_compute_ns / device.comm_ns
        assert overlap.loc[rank, "comp_comm_overlap_pctg"] == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize("name", ["a100_rank3of8_allreduce_alltoall.json.gz", "v100_rank1of2_allreduce_alltoall.json.gz"])
def test_its_last_step_and_its_launch_filter_explain_the_difference(truth, second_opinion, name):
    path = truth / "traces" / "kineto" / name
    breakdown, overlap = second_opinion({0: str(path)})
    theirs = breakdown.loc[0, COLUMNS].tolist()
    run = dtprof.open_run(path)
    view = PartView(run, 0)
    rows = view.device_rows
    assert list(totals(view, rows)) != theirs
    launch = view.events["launch"][rows]
    started = np.where(launch >= 0, view.events["ts"][np.maximum(launch, 0)], np.iinfo(np.int64).max)
    kept = rows[started < run.table("steps", 0)["host_ts"].max()]
    assert list(totals(view, kept)) == theirs
    comm = view.cover(kept[view.events.is_("kind", "comm")[kept]])
    compute = view.cover(kept[view.events.is_("kind", "kernel")[kept]])
    share = 100 * intervals.total(intervals.intersect(comm, compute)) / intervals.total(comm)
    assert overlap.loc[0, "comp_comm_overlap_pctg"] == pytest.approx(share, abs=0.006)


def test_its_rounding_explains_the_difference_on_nanosecond_traces(truth, second_opinion):
    path = truth / "traces" / "kineto" / "a100_rank0of2_collective_args_ns.json.gz"
    breakdown, _ = second_opinion({0: str(path)})
    run = dtprof.open_run(path)
    view = PartView(run, 0)
    rows = view.device_rows
    kept = rows[view.events["ts"][np.maximum(view.events["launch"][rows], 0)] < run.table("steps", 0)["host_ts"].max()]
    exact = totals(view, kept)
    theirs = breakdown.loc[0, COLUMNS].tolist()
    assert exact[1] != theirs[1]
    assert exact[3] == pytest.approx(theirs[3], abs=2)
    assert abs(exact[1] - theirs[1]) <= len(kept)


def test_it_takes_multimem_for_computing(truth, second_opinion):
    path = truth / "traces" / "kineto" / "b200_rank0of8_71_groups_multimem.json.gz"
    device = study_of(dtprof.open_run(path)).result("accounting").parts[0].device
    breakdown, _ = second_opinion({0: str(path)})
    assert device.comm_kernels == 74
    assert breakdown.loc[0, "compute_time(us)"] > 1.1 * device.compute_ns / 1000

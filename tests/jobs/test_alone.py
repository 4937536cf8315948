"""Threads, forks, and profilers of the job's own: nothing of the job breaks, and what is lost is said."""

import gzip
import json

import pytest

from dtprof.jsonl import read_lines
from dtprof.session.folder import describe

RIGHT_OF_WAY = "right of way"
# scenario: (steps recorded, steps whole in the trace or None for no trace, what part.json says is missing)
SCENARIOS = {
    "all_in_a_thread": (6, [2, 3], ""),
    "loop_in_a_thread": (6, [2, 3], ""),
    "loop_in_a_thread_from_the_start": (4, None, "another thread"),
    "left_open_in_a_thread": (4, None, "another thread"),
    "jobs_profiler_around": (6, None, RIGHT_OF_WAY),
    "jobs_profiler_warming_up": (6, None, RIGHT_OF_WAY),
    "jobs_profiler_inside_the_window": (6, [2], RIGHT_OF_WAY),
    "jobs_profiler_inside_and_beyond_the_window": (6, [2], RIGHT_OF_WAY),
    "jobs_profiler_in_our_warm_up": (6, None, RIGHT_OF_WAY),
    "jobs_profiler_afterwards": (6, [1, 2], ""),
    "loader_workers": (6, [1, 2], ""),
    "forked_exit": (5, [1, 2], ""),
    "compiled": (6, [2, 3], ""),
}


# these leave a process behind in which torch's profiler has no more use, or need a fresh one
ALONE = ("loop_in_a_thread_from_the_start", "left_open_in_a_thread", "forked_exit", "compiled")


@pytest.fixture(scope="module")
def outcomes(start, end, scripts, tmp_path_factory):
    """All scenarios, the well-behaved ones in one process: scenario -> (folder, exit code, output)."""
    out = tmp_path_factory.mktemp("alone")
    nothing_set = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DTPROF_RUN_ID"))
    found = {}
    for group in ([s for s in SCENARIOS if s not in ALONE], *([s] for s in ALONE)):
        (rank,) = end(start(1, [str(scripts / "alone.py"), str(out), *group], changes=nothing_set))
        found.update({scenario: (out / scenario / "part00000", rank.code, rank.output) for scenario in group})
    return found


def marks(part):
    with gzip.open(part / "trace.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    return sorted(int(e["name"].partition("#")[2]) for e in events if e.get("name", "").startswith("ProfilerStep#")), events


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_job_ends_well_and_its_steps_are_recorded(outcomes, scenario):
    part, code, output = outcomes[scenario]
    assert code == 0, output
    assert "Traceback" not in output
    rows, bad = read_lines(part / "steps.jsonl")
    assert bad == 0
    assert [r["step"] for r in rows] == list(range(SCENARIOS[scenario][0]))
    assert describe(part).extra["failures"] == []
    assert sorted(p.name for p in part.parent.iterdir()) == ["manifest.json", "part00000"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_trace_is_whole_or_its_absence_is_explained(outcomes, scenario):
    part, code, _ = outcomes[scenario]
    _, whole, missing = SCENARIOS[scenario]
    state = next(c for c in describe(part).extra["collectors"] if c["name"] == "torch_profiler")
    said = " ".join(state.get("missing", []))
    assert (missing in said) if missing else said == ""
    assert code == 0
    if whole is None:
        assert state["facts"].get("operators", 0) == 0
        return
    found, events = marks(part)
    assert [k for k in found if k in whole] == whole
    assert state["facts"]["steps"] == [whole[0], whole[-1]]
    assert sum(e.get("name") == "aten::linear" for e in events) >= len(whole)
    captured = [r["step"] for r in read_lines(part / "steps.jsonl")[0] if r["captured"]]
    assert captured == whole


def test_exit_handlers_of_a_forked_child_run(outcomes):
    _, _, output = outcomes["forked_exit"]
    assert output.count("the job's own exit handler ran in the child") == 1

"""A live run, captured from outside and by itself: the same steps on every rank, and nothing else changes."""

import json
import subprocess
import sys
import time

import pytest

import dtprof
from dtprof.jsonl import read_lines
from dtprof.session.folder import describe

RANKS = (0, 1)


def capture(out, *words):
    """``dtprof capture OUT …``: (exit code, document or text, stderr)."""
    done = subprocess.run(
        [sys.executable, "-m", "dtprof", "capture", str(out), *words], capture_output=True, text=True, timeout=200
    )
    return done.returncode, json.loads(done.stdout) if "--json" in words and done.stdout else done.stdout, done.stderr


def steps_of(out, rank, only_captured=True):
    rows, _ = read_lines(out / f"part0000{rank}" / "steps.jsonl")
    return [r["step"] for r in rows if r["captured"] or not only_captured]


@pytest.fixture(scope="module")
def live(start, end, scripts, tmp_path_factory):
    """A run that was captured twice while it trained, and what the verb said."""
    out = tmp_path_factory.mktemp("live") / "run"
    out.mkdir()
    started = start(2, [str(scripts / "on_demand.py"), str(out), "asked"])
    try:
        deadline = time.monotonic() + 100
        while not any((out / f"part0000{r}" / "steps.jsonl").exists() for r in RANKS) and time.monotonic() < deadline:
            time.sleep(0.2)
        said = [capture(out, "--steps", "2", "--json", "--lead", "3"), capture(out, "--steps", "1", "--lead", "3")]
        refused = capture(out, "--at", "0")
    finally:
        (out / "end").touch()
        ended = end(started)
    assert [rank.code for rank in ended] == [0, 0], "\n".join(rank.output for rank in ended)
    return out, said, refused


def test_the_verb_waits_until_all_ranks_have_written_it(live):
    _, said, refused = live
    code, document, _ = said[0]
    assert code == 0 and document["whole"] is True
    assert document["end"] - document["first"] == 2
    assert [(r["rank"], r["state"], r["whole"]) for r in document["ranks"]] == [(0, "done", True), (1, "done", True)]
    for rank in document["ranks"]:
        assert rank["file"].endswith("trace-0001.json.gz") and rank["bytes"] > 1000
    code, text, heard = said[1]
    assert code == 0
    assert text.count("captured") == 2 and "trace-0002.json.gz" in text
    assert "asked 2 ranks for step" in heard
    assert refused[0] == 3 and "is under way" in refused[2]


def test_all_ranks_captured_the_same_steps_and_only_these(live):
    out, said, _ = live
    first, end = said[0][1]["first"], said[0][1]["end"]
    told = [describe(out / f"part0000{r}").extra["captures"] for r in RANKS]
    assert [(t["number"], t["state"], t["steps"]) for t in told[0]] == [
        (1, "done", [first, end]),
        (2, "done", told[1][1]["steps"]),
    ]
    wanted = [2, 3, *range(first, end), told[0][1]["steps"][0]]
    assert steps_of(out, 0) == steps_of(out, 1) == wanted


def test_the_windows_of_a_run_are_read_as_one(live):
    out, _, _ = live
    run = dtprof.open_run(out)
    for rank in RANKS:
        table = run.table("steps", rank)
        assert table["step"].tolist() == steps_of(out, rank, only_captured=False)
        assert table["step"][table["captured"]].tolist() == steps_of(out, rank)
        events = run.table("events", rank)
        inside = set(events["step"].tolist()) - {-(2**31)}
        assert inside == set(steps_of(out, rank))
        assert (events["ts"][1:] >= events["ts"][:-1]).all()
        # every child lies in its parent, across all windows
        children = [i for i, parent in enumerate(events["parent"].tolist()) if parent >= 0]
        assert len(children) > 100
        end = events["ts"] + events["dur"]
        for i in children:
            parent = int(events["parent"][i])
            assert events["ts"][parent] <= events["ts"][i] and end[i] <= end[parent]
            assert events["lane"][parent] == events["lane"][i]
    collectives = run.table("collectives")
    by_step = {s: int((collectives["step"] == s).sum()) for s in steps_of(out, 0)}
    assert set(by_step.values()) == {2}, by_step
    assert (collectives["n_present"] == 2).all()


def test_a_run_that_has_ended_cannot_be_captured(live):
    out, _, _ = live
    code, _, heard = capture(out)
    assert code == 3
    assert "no process of it is training" in heard and len(heard.strip().splitlines()) == 1


def test_one_slow_step_of_one_rank_has_all_ranks_capture_the_same_later_steps(run, scripts, tmp_path):
    run(2, [str(scripts / "on_demand.py"), str(tmp_path), "anomaly"])
    told = [describe(tmp_path / f"part0000{r}").extra["captures"] for r in RANKS]
    assert len(told[0]) == len(told[1]) == 1
    first, second = told[0][0], told[1][0]
    assert first["why"] == "anomaly" and first["state"] == second["state"] == "done"
    # the other rank waits for the slow one in the next step's collective, if not in this one's
    assert first["step"] in (60, 61) and first["dur_ns"] > first["limit_ns"]
    assert first["dur_ns"] > 4 * 10**9
    assert first["steps"] == second["steps"] and first["steps"][0] > first["step"] + 1
    assert steps_of(tmp_path, 0) == steps_of(tmp_path, 1) == list(range(*first["steps"]))
    for rank in RANKS:
        part = tmp_path / f"part0000{rank}"
        assert sorted(p.name for p in part.glob("trace*")) == ["trace-0001.json.gz"]
        assert describe(part).extra["anomaly"]["floor"] == 20


@pytest.mark.slow
def test_a_slow_file_system_of_one_rank_delays_no_collective_and_is_told(run, scripts, tmp_path):
    run(3, [str(scripts / "on_demand.py"), str(tmp_path), "slow_export"])
    facts = []
    for rank in range(3):
        part = tmp_path / f"part0000{rank}"
        assert len(steps_of(tmp_path, rank, only_captured=False)) == 12
        state = next(c for c in describe(part).extra["collectors"] if c["name"] == "torch_profiler")
        assert "missing" not in state
        facts.append(state["facts"])
    # the end of the session did not wait for the file, the end of the process did
    assert facts[2]["write_ms"] > 6000 > facts[0]["write_ms"]
    for told in facts:
        assert told["stop_ms"] + told["export_ms"] < 4000
    steps = dtprof.open_run(tmp_path).table("steps", 2)
    assert (steps["host_dur"] < 4 * 10**9).all()

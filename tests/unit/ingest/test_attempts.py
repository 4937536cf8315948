"""Restarts: which steps were for nothing, and how long starting again took, from raw files written by hand."""

import json

import pytest

from dtprof.analyse import study_of
from dtprof.ingest import open_run

S = 1_000_000_000


def part(run, ordinal, rank, attempt, steps, first_step, *, host="a", start=0):
    """A part whose steps take one second each, the first at ``start`` seconds."""
    folder = run / f"part{ordinal:05d}"
    folder.mkdir(parents=True)
    lines = [{"step": s, "host_ts": (start + n) * S, "host_dur": S, "kind": "train"} for n, s in enumerate(steps)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    extra = {"first_step": first_step, "started_ns": start * S, "ended_ns": (start + len(steps)) * S, "run_key": "x"}
    described = {"ordinal": ordinal, "rank": rank, "attempt": attempt, "world_size": 2, "host": host, "extra": extra}
    (folder / "part.json").write_text(json.dumps(described))


def steps_of(run, ordinal):
    table = open_run(run, cache=False).table("steps", ordinal)
    return [(row["step"], row["kind"], row["host_ts"] // S, row["host_dur"] // S) for row in map(table.row, range(len(table)))]


def test_repeated_steps_are_lost_and_the_time_between_is_a_restart(tmp_path):
    part(tmp_path, 0, 0, 0, range(8), 0)
    part(tmp_path, 1, 1, 0, range(7), 0)
    part(tmp_path, 2, 0, 1, range(5, 10), 5, start=20)
    part(tmp_path, 3, 1, 1, range(5, 10), 5, start=21)
    assert [kind for _, kind, _, _ in steps_of(tmp_path, 0)] == ["train"] * 5 + ["lost"] * 3
    assert [kind for _, kind, _, _ in steps_of(tmp_path, 1)] == ["train"] * 5 + ["lost"] * 2
    assert steps_of(tmp_path, 2)[:2] == [(4, "restart", 8, 12), (5, "train", 20, 1)]
    assert steps_of(tmp_path, 3)[0] == (4, "restart", 8, 13)
    assert [kind for _, kind, _, _ in steps_of(tmp_path, 3)[1:]] == ["train"] * 5
    table = open_run(tmp_path, cache=False).table("steps", 2)
    assert (table.row(0)["complete"], table.row(0)["marked"], table.row(1)["complete"]) == (False, "inferred", True)


def test_a_second_restart_loses_what_it_repeats_and_no_more(tmp_path):
    part(tmp_path, 0, 0, 0, range(8), 0)
    part(tmp_path, 2, 0, 1, range(5, 12), 5, start=20)
    part(tmp_path, 4, 0, 2, range(10, 14), 10, start=40)
    kinds = [[kind for _, kind, _, _ in steps_of(tmp_path, n)] for n in (0, 2, 4)]
    assert kinds == [
        ["train"] * 5 + ["lost"] * 3,
        ["restart"] + ["train"] * 5 + ["lost"] * 2,
        ["restart"] + ["train"] * 4,
    ]
    assert steps_of(tmp_path, 4)[0] == (9, "restart", 27, 13)


def test_an_attempt_from_step_0_may_have_resumed_or_not(tmp_path):
    part(tmp_path, 0, 0, 0, range(3), 0)
    part(tmp_path, 2, 0, 1, range(3), 0, start=10)
    assert [kind for _, kind, _, _ in steps_of(tmp_path, 0)] == ["train"] * 3
    assert steps_of(tmp_path, 2)[0] == (-1, "restart", 3, 7)


def test_the_clock_of_the_own_host_counts(tmp_path):
    part(tmp_path, 0, 0, 0, range(4), 0, host="a")
    part(tmp_path, 1, 1, 0, range(4), 0, host="b", start=500)
    part(tmp_path, 2, 0, 1, range(2, 4), 2, host="a", start=10)
    part(tmp_path, 3, 1, 1, range(2, 4), 2, host="c", start=400)
    assert steps_of(tmp_path, 2)[0] == (1, "restart", 4, 6)
    # of another host whose clock is behind no time can be told
    assert steps_of(tmp_path, 3)[0] == (2, "train", 400, 1)


def test_one_attempt_is_left_as_it_is(tmp_path):
    part(tmp_path, 0, 0, 0, range(3), 0)
    part(tmp_path, 1, 1, 0, [], 0)
    assert {kind for _, kind, _, _ in steps_of(tmp_path, 0)} == {"train"}
    assert steps_of(tmp_path, 1) == []


def test_goodput_counts_the_restart(tmp_path):
    part(tmp_path, 0, 0, 0, range(8), 0)
    part(tmp_path, 2, 0, 1, range(5, 10), 5, start=20)
    found = study_of(open_run(tmp_path, cache=False)).result("goodput")
    # ten steps that lasted and three that were repeated, of 25 s
    assert found.share == pytest.approx(10 / 25) and found.restarts == 1
    assert found.shares()["lost"] == pytest.approx(3 / 25) and found.shares()["restart"] == pytest.approx(12 / 25)

"""Pairs of real commands: what is read of a run, what ends it, what is refused."""

import json
import sys

import pytest

from dtprof.edits import parse_edit
from dtprof.errors import InputError
from dtprof.launch.pairs import CommandFailed, Pairs, Protocol, Side, _in_place, run_once, step_times

STEPS = """
import dtprof
with dtprof.profile('elsewhere', capture=None) as prof:
    for _ in range({steps}):
        prof.step()
"""


def job(tmp_path, name="job.py", steps=8):
    file = tmp_path / name
    file.write_text(STEPS.format(steps=steps))
    return f"{sys.executable} {file}"


def lines(folder, rows):
    part = folder / "part00000"
    part.mkdir(parents=True, exist_ok=True)
    (part / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_session_of_the_command_goes_where_the_pair_looks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = Pairs((Side("baseline", job(tmp_path)), Side("candidate", job(tmp_path))), Protocol(tmp_path / "out", warm_up=3))
    a, b = pairs.measure(0)
    assert a > 0 and b > 0
    (pair,) = pairs.done
    assert pair.steps == 5 and pair.first in "ab" and not (tmp_path / "elsewhere").exists()
    assert sorted(step_times(tmp_path / "out" / "000a", 3)) == [3, 4, 5, 6, 7]


def test_the_order_inside_the_pairs_is_random_and_repeatable(tmp_path):
    def order(seed):
        pairs = Pairs((Side("baseline", "true"), Side("candidate", "true")), Protocol(tmp_path / str(seed), seed=seed))
        for number in range(6):
            pairs.measure(number)
        return "".join(p.first for p in pairs.done)

    first = order(0)
    assert set(first) == {"a", "b"}
    again = Pairs((Side("baseline", "true"), Side("candidate", "true")), Protocol(tmp_path / "again", seed=0))
    again.measure(0)
    assert again.done[0].first == first[0]


def test_a_command_without_steps_is_timed_as_a_whole(tmp_path):
    pairs = Pairs((Side("baseline", "true"), Side("candidate", "true")), Protocol(tmp_path))
    pairs.measure(0)
    assert pairs.done[0].steps == 0 and pairs.capture() is None


def test_steps_on_one_side_only_are_refused(tmp_path):
    pairs = Pairs((Side("baseline", job(tmp_path)), Side("candidate", "true")), Protocol(tmp_path / "out"))
    with pytest.raises(InputError, match="the baseline command has dtprof steps and the candidate command has none"):
        pairs.measure(0)


def test_too_few_steps_are_refused(tmp_path):
    pairs = Pairs((Side("baseline", job(tmp_path)), Side("candidate", job(tmp_path))), Protocol(tmp_path / "out", steps=50))
    with pytest.raises(InputError, match=r"both runs have 5.steps after 3 of warm-up; 50 are needed"):
        pairs.measure(0)


def test_a_command_that_fails_shows_its_last_lines(tmp_path):
    with pytest.raises(CommandFailed) as caught:
        run_once(Side("candidate", "echo one; echo two >&2; exit 7"), tmp_path / "run")
    assert "the candidate command ended with exit code 7" in caught.value.message
    assert caught.value.tail == ("one", "two") and caught.value.exit_code == 3


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(CommandFailed, match=r"ended after 0\.3 s"):
        run_once(Side("candidate", "sleep 60"), tmp_path / "run", timeout_s=0.3)


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("sleep 60", "exec sleep 60"),
        ("A=1 sleep 1", "A=1 sleep 1"),
        ("cd /tmp && ls", "cd /tmp && ls"),
        ("nothing-of-that-name", "nothing-of-that-name"),
        ("echo 'open", "echo 'open"),
        ("", ""),
    ],
)
def test_a_program_takes_the_place_of_its_shell(command, made):
    assert _in_place(command) == made


def test_an_edit_that_nothing_took_up_is_refused(tmp_path):
    side = Side("candidate", job(tmp_path), (parse_edit("ddp.bucket_cap_mb=1"),))
    with pytest.raises(InputError, match=r"ddp\.bucket_cap_mb=1: had no effect"):
        run_once(side, tmp_path / "run")


def test_the_slowest_rank_of_each_step_counts_and_traced_steps_do_not(tmp_path):
    lines(tmp_path, [{"step": k, "host_dur": 100 + k, "kind": "train" if k else "warm-up"} for k in range(6)])
    other = tmp_path / "part00001"
    other.mkdir()
    rows = [{"step": k, "host_dur": 200 if k == 4 else 50, "kind": "train", "captured": k == 5} for k in range(1, 6)]
    (other / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 9, "host_d')
    assert step_times(tmp_path, 1) == {1: 101, 2: 102, 3: 103, 4: 200, 5: 105}
    assert step_times(tmp_path, 3) == {3: 103, 4: 200, 5: 105}
    assert step_times(tmp_path / "nowhere", 3) == {}

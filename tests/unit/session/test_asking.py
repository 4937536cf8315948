"""``dtprof capture`` and what it reads of a run: whatever lies in the folder, one line says what is wrong."""

import json
import os
import socket

import msgspec
import pytest

from dtprof.cli import main
from dtprof.epoch import epoch_ns
from dtprof.jsonl import read_lines
from dtprof.run import Part, write_json
from dtprof.session.asking import answers, ask, live_parts
from dtprof.session.windows import FILE


def rank(run, number, *, steps=30, pid=None, step_ns=10_000_000, **extra):
    """A part folder of a process that trains: 10 ms a step, the last of which has just ended."""
    part = run / f"part{number:05d}"
    part.mkdir(parents=True, exist_ok=True)
    told = {"run_key": "k", "started_ns": 0, "ended_ns": None, **extra}
    pid = os.getpid() if pid is None else pid
    me = Part(ordinal=number, rank=number, world_size=2, host=socket.gethostname(), pid=pid, extra=told)
    write_json(part / "part.json", msgspec.to_builtins(me))
    began = epoch_ns() - steps * step_ns
    lines = [{"step": k, "host_ts": began + k * step_ns, "host_dur": step_ns - 1000, "own_ns": 1000} for k in range(steps)]
    (part / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9')
    return part


def test_the_first_step_lies_ahead_of_the_foremost_rank(tmp_path):
    rank(tmp_path, 0, steps=30)
    rank(tmp_path, 1, steps=50)
    live = live_parts(tmp_path)
    assert [one.part.rank for one in live] == [0, 1]
    assert all(one.step_ns == 10_000_000 for one in live)
    assert live[0].step >= 30 and live[1].step >= 50
    request = ask(tmp_path, live, steps=4, lead_s=2.0)
    assert request.first == live[1].step + 3 + 200 and request.end == request.first + 4
    (row,) = read_lines(tmp_path / FILE)[0]
    assert (row["run_key"], row["why"], row["id"]) == ("k", "asked", request.id)
    assert [a.state for a in answers(live, request)] == ["unseen", "unseen"]


def test_what_ranks_answer(tmp_path):
    rank(tmp_path, 0)
    rank(tmp_path, 1)
    live = live_parts(tmp_path)
    request = ask(tmp_path, live, steps=1, lead_s=0)
    window = {"number": 1, "file": "trace-0001.json.gz", "bytes": None, "write_ms": None}
    told = {"id": request.id, "number": 1, "state": "done"}

    def answer(number, window, **extra):
        states = [{"name": "torch_profiler", "facts": {"windows": [window] if window else []}}]
        rank(tmp_path, number, captures=[{"id": "other"}, told], collectors=states, **extra)
        return answers(live, request)[number]

    assert not answer(0, window).settled
    written = answer(0, {**window, "bytes": 5, "write_ms": 1.0})
    assert written.settled and written.whole and written.file.endswith("part00000/trace-0001.json.gz")
    lost = answer(0, {**window, "write_ms": 1.0, "problem": "OSError: full"})
    assert lost.settled and not lost.whole and lost.reason == "OSError: full"
    none = answer(1, None)
    assert none.settled and not none.whole and "no trace" in none.reason
    told["state"] = "tracing"
    gone = answer(1, window, ended_ns=5)
    assert (gone.state, gone.settled) == ("gone", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps 0"),
        (["--steps", "101"], "--steps 101"),
        (["--lead", "-1"], "--lead"),
        (["--steps", "x"], "--steps"),
        (["--at", "3", "--timeout", "0"], "is under way"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, capsys, words, said):
    rank(tmp_path, 0)
    assert main(["capture", str(tmp_path), *words]) == 3
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / FILE).exists()


@pytest.mark.parametrize("state", ["absent", "file", "empty", "ended", "killed", "damaged"])
def test_what_cannot_be_captured(tmp_path, capsys, state):
    run = tmp_path / "run"
    if state == "file":
        run.write_text("x")
    elif state != "absent":
        run.mkdir()
    if state == "ended":
        rank(run, 0, ended_ns=1)
    if state == "killed":
        rank(run, 0, pid=2**22 + 1)
    if state == "damaged":
        (rank(run, 0) / "part.json").write_text('{"ordinal": "x"}')
    assert main(["capture", str(run), "--timeout", "0"]) == 3
    error = capsys.readouterr().err
    assert str(run) in error and len(error.strip().splitlines()) == 1


def test_a_wait_that_ends_without_an_answer_is_inconclusive(tmp_path, capsys):
    rank(tmp_path, 0)
    assert main(["capture", str(tmp_path), "--timeout", "0", "--json"]) == 2
    heard = capsys.readouterr()
    document = json.loads(heard.out)
    assert document["whole"] is False and document["ranks"][0]["state"] == "unseen"
    assert "1 of 2 ranks write to this folder" in heard.err
    assert main(["capture", str(tmp_path), "--no-wait"]) == 0
    assert "has not seen the request yet" in capsys.readouterr().out

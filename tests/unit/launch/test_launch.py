import argparse
import os
import sys
from pathlib import Path

import pytest

from dtprof.cli.run import RunCommand, next_folder
from dtprof.edits import parse_edit
from dtprof.errors import InputError
from dtprof.launch import Launch, Outcome, environment, reach, run_command, run_launch
from dtprof.launch.construct import target_of
from dtprof.session import launched
from dtprof.session.launched import VARIABLE, Plan, plan

PRINT = "import os, sys; print(os.environ['PYTHONPATH']); print(os.environ['" + VARIABLE + "']); sys.exit(9)"


def test_what_makes_a_command_measured_is_in_its_environment_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    launch = Launch([sys.executable, "-c", PRINT], tmp_path / "run", capture=None, env={"MINE": "1"})
    assert run_command(launch) == 9
    path, text = capfd.readouterr().out.splitlines()
    assert path.endswith("/launch/site" + os.pathsep + "/mine")
    monkeypatch.setenv(VARIABLE, text)
    told = plan()
    assert told.out == str(tmp_path / "run") and told.capture is None and told.measured
    assert not Path(told.notes).exists()
    made = environment(launch, "", os.environ)
    assert (made["MINE"], made["TORCH_FR_BUFFER_SIZE"], made["KINETO_LOG_LEVEL"]) == ("1", "7", "99")
    assert not (tmp_path / "run").exists()


def test_a_launch_is_checked_before_anything_starts(tmp_path):
    good = Launch(["true"], tmp_path)
    good.check()
    for launch, words in [
        (Launch([], tmp_path), "no command"),
        (Launch(["true"], tmp_path, capture="8:5"), "holds no step"),
        (Launch(["true"], tmp_path, edits=(parse_edit("net.bandwidth_scale=2"),)), "cannot be applied"),
    ]:
        with pytest.raises(InputError, match=words):
            launch.check()


def test_what_processes_leave_is_read_back(tmp_path):
    text = """
import json, os
with open(os.path.join(json.loads(os.environ["DTPROF_LAUNCH"])["notes"], "1.jsonl"), "w") as f:
    f.write('{"what": "edit", "text": "b"}\\n{"what": "edit", "text": "a"}\\nbroken\\n{"what": "edit", "text": "a"}\\n[1]\\n')
"""
    outcome = run_launch(Launch([sys.executable, "-S", "-c", text], tmp_path))
    assert outcome.told("edit") == ["a", "b"] and outcome.code == 0


def test_every_edit_that_can_be_applied_has_something_to_be_applied_to():
    from dtprof.edits import KEYS

    for key in KEYS.values():
        if key.applied == "construction":
            value = "true" if "false" in key.expects else "fp16" if "fp16" in key.expects else "2"
            assert target_of(parse_edit(f"{key.name}={value}"))


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (["docker", "run", "image", "python", "x.py"], "docker"),
        (["/usr/bin/ssh", "host", "python x.py"], "ssh"),
        (["env", "-i", "python", "x.py"], "env -i"),
        (["python", "-E", "x.py"], "-E"),
        (["torchrun", "--no-python", "python3.11", "-sI", "x.py"], "-sI"),
        (["sudo", "torchrun", "x.py"], "sudo"),
    ],
)
def test_a_command_that_cannot_be_followed_is_named_before_it_starts(command, word):
    assert word in reach.warning(command)
    assert "\n" not in reach.warning(command)


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc_per_node=2", "train.py", "-E"],
        ["python", "train.py", "-I"],
        ["python", "-u", "-m", "train", "-S"],
        ["python", "-c", "print()", "-E"],
        ["srun", "-n", "2", "python", "-W", "error", "x.py"],
        ["sudo", "-E", "python", "x.py"],
        ["env", "A=1", "python", "x.py"],
        ["train-docker"],
    ],
)
def test_others_are_not_doubted(command):
    assert reach.warning(command) == ""


def test_afterwards_the_reason_comes_from_what_was_seen():
    def why(*notes, command=("python", "x.py")):
        return reach.why_nothing(Outcome(0, "", tuple((note, "there") for note in notes)), command)

    assert "install dtprof" in why("python", "no dtprof")
    assert "no optimizer" in why("python", "torch")
    assert "no process of the job loaded torch" in why("python")
    assert "no Python process" in why()
    assert "-x DTPROF_LAUNCH" in why(command=("mpirun", "-n", "2", "python", "x.py"))
    assert "dtprof merge" in why(command=("srun", "-N", "2", "python", "x.py"))
    assert "ssh" in why(command=("ssh", "host"))


def test_a_script_that_has_a_session_of_its_own_follows_what_was_given():
    own = {"out": "mine", "capture": "1:2", "collectors": ["host"]}
    assert Plan(out="/runs/1", run_id="x").over(own) == {**own, "out": "/runs/1"}
    asked = Plan(out="/runs/1", run_id="x", capture=None, collectors=["ddp"], given=["capture", "collectors"])
    assert asked.over(own) == {"out": "/runs/1", "capture": None, "collectors": ["ddp"]}


def test_what_another_version_of_dtprof_adds_is_passed_over(monkeypatch):
    monkeypatch.setenv(VARIABLE, '{"out": "/x", "run_id": "a", "of the future": 1}')
    assert plan() == Plan(out="/x", run_id="a")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "7", '{"out": 1, "bad": 2}'])
def test_a_damaged_plan_is_none(monkeypatch, text):
    if text is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, text)
    assert plan() is None
    launched.tell("anything")


class Store:
    """As torch's stores: the first value stays."""

    def __init__(self):
        self.values = {}

    def compare_set(self, key, expected, wanted):
        assert expected == ""
        return self.values.setdefault(key, wanted).encode()


@pytest.fixture
def group(monkeypatch):
    """A process group of two ranks whose default store is the one that is returned."""
    store = Store()
    module = argparse.Namespace(get_world_size=lambda: 2, distributed_c10d=argparse.Namespace(_get_default_store=lambda: store))
    monkeypatch.setattr(launched, "process_group", lambda: module)
    for name in ("DTPROF_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return store


def test_nodes_agree_on_the_id_of_the_one_that_comes_first(group, monkeypatch, tmp_path):
    for node in ("a", "b", "c"):
        monkeypatch.delenv("DTPROF_RUN_ID", raising=False)
        launched.agree_on_run_id(Plan(out=str(tmp_path / node), run_id=node))
        assert os.environ["DTPROF_RUN_ID"] == "a"
    assert (tmp_path / "c" / launched.RUN_ID_FILE).read_text() == "a"


def test_a_restarted_attempt_keeps_the_id_although_its_store_is_new(group, monkeypatch, tmp_path):
    launched.agree_on_run_id(Plan(out=str(tmp_path), run_id="a"))
    group.values.clear()
    monkeypatch.delenv("DTPROF_RUN_ID")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    launched.agree_on_run_id(Plan(out=str(tmp_path), run_id="b"))
    assert os.environ["DTPROF_RUN_ID"] == "a"


def test_a_store_that_cannot_agree_costs_a_word(group, monkeypatch, tmp_path):
    monkeypatch.setattr(launched, "facts", {})
    monkeypatch.setattr(group, "compare_set", lambda *_: 1 / 0)
    launched.agree_on_run_id(Plan(out=str(tmp_path), run_id="a"))
    assert os.environ["DTPROF_RUN_ID"] == "a"
    assert "ZeroDivisionError" in launched.facts["run_id"]


def test_runs_are_numbered_and_go_elsewhere_where_nothing_can_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert [str(next_folder()) for _ in range(2)] == ["runs/0001", "runs/0002"]
    (tmp_path / "runs" / "0041").mkdir()
    assert str(next_folder()) == "runs/0042"
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").write_text("")
    assert str(next_folder("file/runs")).startswith(str(tmp_path / "tmp"))
    assert "cannot be written" in capsys.readouterr().err


def test_usage_is_refused_in_one_line():
    command = RunCommand()
    parser = argparse.ArgumentParser()
    command.configure(parser)
    parser.add_argument("--json", action="store_true")
    with pytest.raises(InputError, match="no command"):
        command.run(parser.parse_args(["--"]))
    with pytest.raises(InputError, match=r"did you mean ddp\.bucket_cap_mb"):
        command.run(parser.parse_args(["--set", "ddp.bucket_cap=1", "--", "true"]))

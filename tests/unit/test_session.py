import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dtprof
from dtprof.errors import InputError
from dtprof.jsonl import read_lines
from dtprof.run import Part, read_manifest
from dtprof.session.folder import describe
from tests.unit.session_fakes import Raises, Remembers

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK",
             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "DTPROF_RUN_ID", "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def part(folder) -> Part:
    found = describe(Path(folder))
    assert found is not None
    return found


def test_a_session_numbers_times_and_describes_steps(tmp_path):
    fake = Remembers()
    with dtprof.profile(tmp_path, collectors=[fake], job="x", knobs={"lr": 1}, capture="1:3", first_step=10) as prof:
        prof.step(loss=1.5, tokens=7, samples=2)
        dtprof.step(kind="eval")
        prof.step(loss=float("nan"))
    assert fake.calls == ["start", 10, 11, 12, "stop"]
    assert fake.context.capture == (1, 3)
    assert fake.context.first_step == 10
    assert fake.context.folder == tmp_path / "part00000"
    rows, bad = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert bad == 0
    assert [r["step"] for r in rows] == [10, 11, 12]
    assert [r["kind"] for r in rows] == ["warm-up", "eval", "train"]
    assert (rows[0]["loss"], rows[0]["tokens"], rows[0]["samples"]) == (1.5, 7, 2)
    assert rows[2]["loss"] is None
    assert not any(r["captured"] for r in rows)
    for before, after in itertools.pairwise(rows):
        assert before["host_ts"] + before["host_dur"] + before["own_ns"] <= after["host_ts"]
    manifest = read_manifest(tmp_path / "manifest.json")
    assert (manifest.job, manifest.knobs, manifest.world_size) == ("x", {"lr": 1}, 1)
    assert [c["name"] for c in manifest.collectors] == ["remembers"]
    described = part(tmp_path / "part00000")
    assert described.extra["steps_done"] == 3
    assert described.extra["ended_ns"] > described.extra["started_ns"]
    assert sorted(p.name for p in (tmp_path / "part00000").iterdir()) == ["part.json", "steps.jsonl"]


def test_a_job_that_changes_its_directory_keeps_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dtprof.profile("run", collectors=[Remembers()], job=3) as prof:
        prof.step()
        os.chdir("/")
        prof.step()
    assert part(tmp_path / "run" / "part00000").extra["failures"] == []
    assert part(tmp_path / "run" / "part00000").extra["ended_ns"] is not None
    assert read_manifest(tmp_path / "run" / "manifest.json").job == "3"


def test_after_the_end_steps_are_nothing(tmp_path):
    with dtprof.profile(tmp_path, collectors=[]) as prof:
        prof.step()
    prof.step()
    dtprof.step()
    prof.stop()
    assert len(read_lines(tmp_path / "part00000" / "steps.jsonl")[0]) == 1


def test_start_and_stop_without_a_with(tmp_path):
    prof = dtprof.profile(tmp_path, collectors=[])
    prof.start()
    prof.step()
    prof.stop()
    assert part(tmp_path / "part00000").extra["steps_done"] == 1


def test_captured_is_what_a_tracer_says_it_traced(tmp_path):
    class Traces(Remembers):
        def on_step(self, step):
            self.context.status.tracing = step in (1, 2)

    with dtprof.profile(tmp_path, collectors=[Traces()], capture=(2, 5)) as prof:
        for _ in range(6):
            prof.step()
    rows, _ = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert [r["step"] for r in rows if r["captured"]] == [2, 3]


@pytest.mark.parametrize("hook", ["start", "on_step", "stop"])
def test_a_collector_that_raises_is_switched_off_logged_once_and_named(tmp_path, caplog, hook):
    bad, good = Raises(hook), Remembers()
    with caplog.at_level(logging.WARNING, "dtprof"), dtprof.profile(tmp_path, collectors=[bad, good], capture=None) as prof:
        for _ in range(3):
            prof.step()
    assert good.calls == ["start", 0, 1, 2, "stop"]
    assert bad.calls == {"start": ["start", "stop"], "on_step": ["start", 0, "stop"], "stop": ["start", 0, 1, 2, "stop"]}[hook]
    assert len([r for r in caplog.records if "raises" in r.message]) == 1
    (failure,) = part(tmp_path / "part00000").extra["failures"]
    assert (failure["name"], failure["hook"], failure["error"]) == ("raises", hook, "RuntimeError: planted")
    states = {c["name"]: c["state"] for c in read_manifest(tmp_path / "manifest.json").collectors}
    assert states == {"raises": "off", "remembers": "on"}


def test_a_collector_that_cannot_be_made_is_named(tmp_path):
    class Broken(Remembers):
        name = "broken"

        def __init__(self):
            raise ValueError("no")

    with dtprof.profile(tmp_path, collectors=[Broken, "absent", Remembers], capture=None) as prof:
        prof.step()
    states = {c["name"]: c["state"] for c in part(tmp_path / "part00000").extra["collectors"]}
    assert states == {"broken": "off", "absent": "off", "remembers": "on"}


def test_ctrl_c_and_a_signal_handlers_exception_are_not_swallowed(tmp_path):
    class TimeIsUp(Exception):
        pass

    def handler(number, frame):
        raise TimeIsUp

    class Slow(Remembers):
        def on_step(self, step):
            os.kill(os.getpid(), signal.SIGUSR1)
            for _ in range(1000):
                pass

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(TimeIsUp), dtprof.profile(tmp_path / "a", collectors=[Slow()], capture=None) as prof:
            prof.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    interrupts = Raises("on_step", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt), dtprof.profile(tmp_path / "b", collectors=[interrupts], capture=None) as prof:
        prof.step()


def test_the_jobs_own_exception_passes_and_the_run_is_closed(tmp_path):
    def job():
        with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
            prof.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert part(tmp_path / "part00000").extra["ended_ns"] is not None


@pytest.mark.parametrize("path", ["/proc/dtprof/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_costs_one_warning(path, caplog):
    fake = Remembers()
    with caplog.at_level(logging.WARNING, "dtprof"), dtprof.profile(path, collectors=[fake]) as prof:
        prof.step()
        with dtprof.annotate("forward"):
            pass
        dtprof.step()
    assert fake.calls == []
    assert len(caplog.records) == 1
    with dtprof.profile("/proc/dtprof/run", collectors=[]):
        pass


def test_steps_that_cannot_be_written_are_named_and_the_rest_goes_on(tmp_path):
    fake = Remembers()
    with dtprof.profile(tmp_path, collectors=[fake], capture=None) as prof:
        prof.step()
        os.close(prof._lines._fd)
        prof._lines.flush_s = 0
        prof.step()
        prof.step()
        prof._lines._fd = -1
    assert fake.calls == ["start", 0, 1, 2, "stop"]
    assert [f["name"] for f in part(tmp_path / "part00000").extra["failures"]] == ["steps"]


def test_a_window_that_is_none_is_refused_before_training(tmp_path):
    for capture in ("8:5", "5:5", "-1:2", "five", "5", (1, 2, 3), 7):
        with pytest.raises(InputError, match="capture="):
            dtprof.profile(tmp_path, capture=capture)
    assert list(tmp_path.iterdir()) == []


def test_a_long_window_is_shortened_and_said(tmp_path):
    fake = Remembers()
    with dtprof.profile(tmp_path, collectors=[fake], capture=(1, 10_000)) as prof:
        prof.step()
    assert fake.context.capture == (1, 101)
    assert any("shortened to 1:101" in n for n in part(tmp_path / "part00000").extra["notes"])


def test_a_loop_that_never_steps_or_ends_early_is_told(tmp_path, caplog):
    with dtprof.profile(tmp_path / "a", collectors=[]):
        pass
    assert "step() was never called: no step is known" in part(tmp_path / "a/part00000").extra["notes"]
    with dtprof.profile(tmp_path / "b", collectors=[], capture="1:4") as prof:
        for _ in range(3):
            prof.step()
    assert "capture 1:4 is incomplete: the loop ended after step 2" in part(tmp_path / "b/part00000").extra["notes"]
    with dtprof.profile(tmp_path / "c", collectors=[], capture="1:4") as prof:
        for _ in range(4):
            prof.step()
    assert part(tmp_path / "c/part00000").extra["notes"] == []
    assert len(caplog.records) == 2


def test_a_second_session_inside_the_first_measures_nothing(tmp_path, caplog):
    with dtprof.profile(tmp_path / "a", collectors=[]) as outer:
        with dtprof.profile(tmp_path / "b", collectors=[]) as inner:
            inner.step()
        outer.step()
    assert part(tmp_path / "a/part00000").extra["steps_done"] == 1
    assert not (tmp_path / "b").exists()
    assert "already running" in caplog.records[0].message


def test_a_loss_on_a_device_is_not_read(tmp_path):
    class Loss:
        device = type("Device", (), {"type": "cuda"})()

        def item(self):
            raise AssertionError("this would wait for the device")

    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        prof.step(loss=Loss())
        prof.step(loss=Loss())
    rows, _ = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert "loss" not in rows[0]
    assert len([n for n in part(tmp_path / "part00000").extra["notes"] if "device" in n]) == 1


def test_what_a_job_gives_is_taken_as_numbers_or_noted(tmp_path):
    class Tensor:
        def __init__(self, value):
            self.value, self.device = value, type("Device", (), {"type": "cpu"})()

        def detach(self):
            return self

        def __float__(self):
            return float(self.value)

        def __int__(self):
            return int(self.value)

    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        prof.step(loss=Tensor(2.5), tokens=Tensor(7), samples=3.0)
        prof.step(loss="many", tokens=8, kind="training")
        prof.step(loss=1.0, tokens=9)
    rows, _ = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert (rows[0]["loss"], rows[0]["tokens"], rows[0]["samples"]) == (2.5, 7, 3)
    assert [r.get("loss") for r in rows[1:]] == [None, None]
    assert [r["tokens"] for r in rows] == [7, 8, 9]
    assert rows[1]["kind"] == "train"
    described = part(tmp_path / "part00000").extra
    assert [f["name"] for f in described["failures"]] == ["loss"]
    assert any("kind='training'" in n for n in described["notes"])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_steps_stops_and_exits_without_a_trace(tmp_path):
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        prof.step()
        before = (tmp_path / "part00000" / "part.json").read_bytes()
        child = os.fork()
        if child == 0:
            prof.step()
            dtprof.step()
            prof.stop()
            os._exit(0 if dtprof.session.active() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (tmp_path / "part00000" / "part.json").read_bytes() == before
        prof.step()
    rows, _ = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert [r["step"] for r in rows] == [0, 1]


def test_a_job_that_just_ends_still_writes(tmp_path):
    code = f"import dtprof\nprof = dtprof.profile({str(tmp_path)!r}, collectors=[])\nprof.start()\nprof.step()\nprof.step()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert len(read_lines(tmp_path / "part00000" / "steps.jsonl")[0]) == 2
    assert part(tmp_path / "part00000").extra["ended_ns"] is not None


def test_own_cost_is_ours_over_the_loop(tmp_path, monkeypatch):
    now = [0]
    monkeypatch.setattr("dtprof.session.core.time.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr("dtprof.session.marks.price_ns", lambda: (0.0, 0.0))

    class Takes(Remembers):
        def on_step(self, step):
            now[0] += 20_000

    with dtprof.profile(tmp_path, collectors=[Takes()], capture="20:22") as prof:
        for step in range(30):
            now[0] += 980_000 if step not in range(17, 23) else 50_000_000
            prof.step()
    cost = part(tmp_path / "part00000").extra["own_cost"]
    assert cost["steps"] == 30 - 1 - 6
    assert cost["fraction"] == pytest.approx(0.02)
    assert cost["low"] <= cost["fraction"] <= cost["high"]
    assert read_manifest(tmp_path / "manifest.json").own_cost == {k: cost[k] for k in ("fraction", "low", "high")}


def test_what_is_written_can_be_read_as_json(tmp_path):
    with dtprof.profile(tmp_path, collectors=[], capture=None, knobs={"path": Path("/x"), "nan": 1}) as prof:
        prof.step()
    assert json.loads((tmp_path / "manifest.json").read_text())["knobs"] == {"path": "/x", "nan": 1}


def test_the_layout_that_a_job_states_goes_to_the_manifest(tmp_path):
    layout = {"mesh": {"dp": 2, "pp": 1}, "coordinates": {0: {"dp": 0, "pp": 0}, 1: {"dp": 1, "pp": 0}}}
    groups = [{"name": "dp", "axis": "dp", "ranks": [0, 1]}]
    with dtprof.profile(tmp_path, capture=None, collectors=[], groups=groups, **layout) as prof:
        prof.step()
    manifest = read_manifest(tmp_path / "manifest.json")
    assert manifest.mesh == layout["mesh"]
    assert manifest.coordinates == {"0": {"dp": 0, "pp": 0}, "1": {"dp": 1, "pp": 0}}
    assert manifest.groups == [{"backend": None, **groups[0]}]


def test_a_step_with_too_many_ranges_has_no_phases_and_that_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr("dtprof.session.phases.MAX_EVENTS", 6)
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        for ranges in (1, 3, 2):
            for _ in range(ranges):
                with dtprof.annotate("forward"):
                    pass
            prof.step()
    rows, _ = read_lines(tmp_path / "part00000" / "steps.jsonl")
    assert [set(row.get("phases", ())) for row in rows] == [{"forward"}, set(), {"forward"}]
    assert [n for n in part(tmp_path / "part00000").extra["notes"] if n.startswith("phases are not known")]

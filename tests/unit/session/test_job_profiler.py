"""The job's own torch.profiler: what it exports while a session runs is linked into the part folder, and read."""

import os

import pytest

import dtprof
from dtprof.session.folder import describe
from dtprof_collectors import torch_profiler_foreign
from dtprof_collectors.torch_profiler_files import prune, trace_name
from dtprof_collectors.torch_profiler_foreign import JobExports

torch = pytest.importorskip("torch")


def job_traces(run):
    states = describe(run / "part00000").extra["collectors"]
    return next(s for s in states if s["name"] == "torch_profiler")["facts"]["job_traces"]


def test_what_the_jobs_profiler_exports_is_read_in_our_numbers(tmp_path):
    from torch.profiler import ProfilerActivity, profile, schedule

    def export(theirs):
        theirs.export_chrome_trace(str(tmp_path / "shared_name.json"))

    model = torch.nn.Linear(32, 32)
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    original = profile.export_chrome_trace
    with dtprof.profile(tmp_path / "run", capture=None, collectors=["torch_profiler"], first_step=10) as prof:
        for _ in range(3):
            prof.step()
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=export) as theirs:
            for _ in range(3):
                for _ in range(50):
                    model(torch.ones(4, 32)).sum().backward()
                theirs.step()
                prof.step()
        prof.step()
    assert profile.export_chrome_trace is original
    (told,) = job_traces(tmp_path / "run")
    assert (told["path"], told["file"], told["problem"]) == (str(tmp_path / "shared_name.json"), "trace-job-0001.json", None)
    (tmp_path / "shared_name.json").unlink()
    run = dtprof.open_run(tmp_path / "run")
    steps = run.table("steps", 0)
    assert steps["step"][steps["captured"]].tolist() == [14, 15]
    assert {14, 15} <= set(run.table("events", 0)["step"].tolist())


@pytest.fixture
def exports(tmp_path, monkeypatch):
    class Profiler:
        def export_chrome_trace(self, path):
            with open(path, "w") as file:
                file.write(self.text)

    module = type("module", (), {"_KinetoProfile": Profiler})
    monkeypatch.setitem(torch_profiler_foreign.sys.modules, "torch.profiler.profiler", module)
    (tmp_path / "part").mkdir()
    made = JobExports(tmp_path / "part", lambda: None)
    made.begin()
    yield made, Profiler()
    made.end()
    assert Profiler.export_chrome_trace.__name__ == "export_chrome_trace"


def test_an_export_that_is_cut_off_or_cannot_be_linked_is_told_and_raises_nothing(exports, tmp_path):
    made, profiler = exports
    profiler.text = '{"traceEvents": ['
    profiler.export_chrome_trace(tmp_path / "a.json")
    assert made.told[0]["problem"] == "the text is cut off"
    os.rmdir(tmp_path / "part") if not list((tmp_path / "part").iterdir()) else None
    made._folder = tmp_path / "gone"
    profiler.export_chrome_trace(tmp_path / "b.json")
    assert made.told[1]["file"] is None and "FileNotFoundError" in made.told[1]["problem"]
    with pytest.raises(IsADirectoryError):
        profiler.export_chrome_trace(tmp_path)
    assert len(made.told) == 2, "the job's own error is the job's"


def test_links_are_a_ring(exports, tmp_path):
    made, profiler = exports
    profiler.text = "{}"
    for n in range(12):
        profiler.export_chrome_trace(tmp_path / f"{n}.json")
    kept = sorted(p.name for p in (tmp_path / "part").iterdir())
    assert kept == [f"trace-job-{n:04d}.json" for n in range(5, 13)]
    assert [t["file"] for t in made.told if t["file"]] == kept
    assert len(list(tmp_path.glob("*.json"))) == 12, "what the job wrote stays"


def test_traces_are_kept_within_ring_and_cap(tmp_path):
    def write(numbers, size=10):
        for n in numbers:
            (tmp_path / trace_name(n)).write_bytes(b"x" * size)

    write(range(5))
    assert prune(tmp_path, kept=2, cap_bytes=10**6) == ["trace-0001.json.gz", "trace-0002.json.gz"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace-0003.json.gz", "trace-0004.json.gz", "trace.json.gz"]
    write([5], size=100)
    assert prune(tmp_path, kept=9, cap_bytes=125) == ["trace-0003.json.gz"]
    assert prune(tmp_path, kept=9, cap_bytes=1) == ["trace-0004.json.gz"], "the newest stays, and the configured one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace-0005.json.gz", "trace.json.gz"]

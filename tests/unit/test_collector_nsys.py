"""The collector nsys, with a stand-in for nvtx and for CUDA."""

import sys
from types import SimpleNamespace

import pytest

from dtprof.protocols import Context
from dtprof.session import nvtx_domain
from dtprof_collectors.nsys import NsysCollector


@pytest.fixture
def log(monkeypatch):
    """What was asked of nvtx and of CUDA, in order."""
    said = []

    def start_range(message, domain, category=None, payload=None):
        said.append(("start", message, domain, payload))
        return (message, payload)

    module = SimpleNamespace(start_range=start_range, end_range=lambda r: said.append(("end", *r)))
    profiler = SimpleNamespace(start=lambda: said.append("profiler start"), stop=lambda: said.append("profiler stop"))
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True, profiler=profiler))
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setenv("DTPROF_NVTX", "1")
    monkeypatch.delenv("DTPROF_NSYS_CAPTURE", raising=False)
    return said


def steps(tmp_path, capture, first, count):
    collector = NsysCollector()
    collector.start(Context(rank=1, world_size=2, folder=tmp_path, capture=capture, options={}, first_step=first))
    for step in range(first, first + count):
        collector.on_step(step)
    collector.stop()


def test_a_range_per_step_and_the_rank_before(log, tmp_path):
    steps(tmp_path, (-1, -1), 7, 2)
    assert log == [
        ("start", "rank 1 of 2", "dtprof", None), ("end", "rank 1 of 2", None),
        ("start", "step", "dtprof", 7), ("end", "step", 7), ("start", "step", "dtprof", 8), ("end", "step", 8),
        ("start", "step", "dtprof", 9), ("end", "step", 9),
    ]  # fmt: skip


def test_cuda_profiles_the_capture_only_where_asked_to(log, tmp_path, monkeypatch):
    steps(tmp_path, (1, 3), 0, 4)
    assert "profiler start" not in log
    log.clear()
    monkeypatch.setenv("DTPROF_NSYS_CAPTURE", "1")
    steps(tmp_path, (1, 3), 0, 4)
    marks = [entry for entry in log if entry in ("profiler start", "profiler stop") or entry[:2] == ("start", "step")]
    assert marks == [
        ("start", "step", "dtprof", 0), "profiler start", ("start", "step", "dtprof", 1), ("start", "step", "dtprof", 2),
        "profiler stop", ("start", "step", "dtprof", 3), ("start", "step", "dtprof", 4),
    ]  # fmt: skip


def test_a_loop_that_ends_inside_the_capture_stops_the_profiler(log, tmp_path, monkeypatch):
    monkeypatch.setenv("DTPROF_NSYS_CAPTURE", "1")
    steps(tmp_path, (1, 9), 0, 2)
    assert log[-1] == "profiler stop"


def test_without_a_tool_nothing_happens(log, tmp_path, monkeypatch):
    for key in ("DTPROF_NVTX", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(key, raising=False)
    steps(tmp_path, (-1, -1), 0, 2)
    assert log == []


def test_versions_of_nvtx_without_methods_on_domains(monkeypatch):
    said = []
    module = SimpleNamespace(
        enabled=lambda: True, get_domain=lambda name: object(), push_range=lambda **w: said.append(w),
        pop_range=lambda domain: said.append(domain),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "nvtx", module)
    monkeypatch.setenv("DTPROF_NVTX", "1")
    domain = nvtx_domain.domain()
    domain.push_range(domain.get_event_attributes(message="forward", category="forward", payload=3))
    domain.pop_range()
    assert said == [{"domain": "dtprof", "message": "forward", "category": "forward", "payload": 3}, "dtprof"]

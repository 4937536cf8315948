"""Collectors that need not see every step: asked always at first and around captures, else a few times a second."""

import time

import dtprof
from dtprof.session import core
from dtprof_collectors.host import HostCollector


class Seen:
    def __init__(self, name, sampled):
        self.name, self.sampled, self.steps = name, sampled, []

    def start(self, context):
        context.status.sampled = self.sampled

    def on_step(self, step):
        self.steps.append(step)

    def stop(self):
        pass

    def tables(self, folder):
        return {}


def test_a_sampled_collector_is_spared_most_quick_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "SAMPLE_NS", 10**15)
    every, some = Seen("every", False), Seen("some", True)
    with dtprof.profile(tmp_path, capture=(60, 62), collectors=[every, some]) as prof:
        for _ in range(80):
            prof.step()
    assert every.steps == list(range(80))
    assert some.steps == [*range(core.ALWAYS_STEPS), *range(57, 63)]


def test_it_is_asked_again_when_time_has_gone_by(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "ALWAYS_STEPS", 0)
    monkeypatch.setattr(core, "SAMPLE_NS", 20_000_000)
    some = Seen("some", True)
    with dtprof.profile(tmp_path, capture=None, collectors=[some]) as prof:
        for _ in range(6):
            prof.step()
            time.sleep(0.011)
    assert 0 in some.steps
    assert 1 < len(some.steps) < 6


def test_what_the_host_used_in_several_steps_is_their_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "ALWAYS_STEPS", 2)
    monkeypatch.setattr(core, "SAMPLE_NS", 10**15)
    with dtprof.profile(tmp_path, capture=(20, 21), collectors=[HostCollector]) as prof:
        for _ in range(18):
            began = time.thread_time_ns()
            while time.thread_time_ns() - began < 3_000_000:
                pass
            prof.step()
    metrics = HostCollector().tables(tmp_path / "part00000")["metrics"]
    rows = metrics.is_("metric", "thread_cpu")
    used = dict(zip(metrics["step"][rows].tolist(), metrics["value"][rows].tolist(), strict=True))
    assert sorted(used) == [0, 1, 17]
    assert 2.9e6 < used[17] < 6e6

"""Workers of a parameter server: the slow one by name, and staleness as the job records it."""

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from tests.unit.shapes.build import PartBuilder, matched, shape


def job(forward, waits, *, updates=(2, 2, 2), steps=12):
    """Workers that compute so many ms and wait so many at the server; nobody waits for anybody else."""
    builders = []
    for r, (ms, waited) in enumerate(zip(forward, waits, strict=True)):
        p = PartBuilder(r, r, world_size=len(forward), backend="gloo")
        thread = p.thread()
        period = int(1000 * (ms + waited)) + 100
        for step in range(steps):
            at = period * step
            p.span(thread, "range", "pull", at, at + int(waited * 1000), step=step)
            begin, end = at + int(waited * 1000), at + period - 100
            phase = p.span(thread, "range", "forward", begin, end, step=step, phase="forward")
            p.span(thread, "cpu_op", "work", begin, end, step=step, phase="forward", parent=phase)
            p.step(step, at, at + period)
            told = {"staleness": 1, "staleness_updates": updates[r], "phase_forward": ms * 4e5, "phase_backward": ms * 6e5}
            for name, value in told.items():
                p.add("metrics", step=step, metric=name, value=float(value) * (1 + 0.001 * step), unit="ns")
        builders.append(p)
    return study_of(matched(shape(builders, {}, kind="dtprof", world_size=len(forward))))


def rules(lens):
    return {f.rule: f for f in findings(lens)}


def test_the_slow_worker_is_named_and_that_others_wait_for_it():
    lens = job([20, 20, 50], [31, 31, 1])
    assert [s.rank for s in lens.result("stragglers").found] == [2]
    told = rules(lens)
    assert [r for r in told if r.startswith("straggler.")] == ["straggler.slow_worker"]  # once, not as a slow rank, too
    finding = told["straggler.slow_worker"]
    assert finding.ranks == (2,)
    assert finding.seconds_per_step == pytest.approx(0.030, rel=0.05)
    assert "wait for it" in finding.title


def test_workers_that_go_on_make_its_gradients_stale():
    finding = rules(job([20, 20, 50], [1, 1, 1], updates=(2, 2, 6)))["straggler.slow_worker"]
    assert "go on" in finding.title
    assert "rank 2: 6.0" in " ".join(e.text for e in finding.evidence)


def test_equal_workers_are_healthy():
    assert not any(r.startswith("straggler.") for r in rules(job([20, 20.2, 19.9], [1, 1, 1])))


def test_other_jobs_have_no_workers():
    from tests.unit.shapes.devices import gloo_cpu

    assert study_of(matched(gloo_cpu())).result("parameter_server").workers == ()

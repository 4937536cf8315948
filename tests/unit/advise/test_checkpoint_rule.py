"""Steps after a save that are longer on one rank (pytorch#147039): the rank, the time, the remedy; and no false alarm."""

import json

import numpy as np
import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.ingest import open_run

MS = 1_000_000


def recorded(folder, extra, *, ranks=2, steps=41, every=5, wait=True):
    """A run without a trace: steps of 30 ms, 10 of them forward; ``extra(rank, step)`` ms more in forward, awaited by all."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, (ranks, steps))
    for rank in range(ranks):
        part = folder / f"part{rank:05d}"
        part.mkdir(parents=True)
        now, lines = 1_000 * MS, []
        for step in range(steps):
            more = [extra(r, step) for r in range(ranks)]
            forward = round((10 + more[rank] + noise[rank, step]) * MS)
            dur = round((30 + (max(more) if wait else more[rank])) * MS)
            kind = "warm-up" if step == 0 else "checkpoint" if step % every == every - 1 else "train"
            lines.append({
                "step": step, "host_ts": now, "host_dur": dur, "kind": kind, "phases": {"data": MS, "forward": forward}
            })  # fmt: skip
            now += dur
        (part / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        extras = {"first_step": 0, "ended_ns": now}
        described = {"ordinal": rank, "rank": rank, "world_size": ranks, "host": "a", "extra": extras}
        (part / "part.json").write_text(json.dumps(described))
    return [f for f in findings(study_of(open_run(folder, cache=False))) if f.rule == "checkpoint.saving_thread"]


def after(step, distance=1, every=5):
    return step % every == distance - 1 and step > distance


def test_the_rank_whose_thread_saves_is_named_with_its_time_per_save(tmp_path):
    (found,) = recorded(tmp_path, lambda rank, step: 20.0 * (rank == 0 and after(step)))
    assert found.ranks == (0,)
    assert found.seconds_per_step == pytest.approx(0.020 / 5, rel=0.05)
    assert found.severity == "medium"
    assert "in the step after it; the others wait for it" in found.title
    assert "PROCESS" in found.apply
    assert "fewer, larger tensors" in found.apply
    assert "not recorded" in found.why
    assert found.evidence[1].text.startswith("The same on the others: rank 1: ")


def test_a_save_that_lasts_two_steps_costs_both(tmp_path):
    def extra(rank, step):
        return (rank == 1) * (25.0 * after(step) + 10.0 * after(step, 2))

    (found,) = recorded(tmp_path, extra)
    assert found.ranks == (1,)
    assert found.seconds_per_step == pytest.approx(0.035 / 5, rel=0.05)
    assert "in the 2 steps after it" in found.title


@pytest.mark.parametrize(
    "extra",
    [
        lambda _rank, _step: 0.0,
        lambda rank, _step: 20.0 * (rank == 0),
        lambda rank, step: 20.0 * (rank == 0 and step % 5 == 3),
        lambda rank, step: 20.0 * (rank == 0 and step in (5, 15, 30)),
        lambda rank, step: 0.5 * (rank == 0 and after(step)),
    ],
    ids=["healthy", "always slow", "slow before a save", "slow after some saves", "too little"],
)
def test_it_is_silent_where_saves_are_not_the_cause(tmp_path, extra):
    assert recorded(tmp_path, extra) == []


def test_two_saves_are_too_few(tmp_path):
    assert recorded(tmp_path, lambda rank, step: 20.0 * (rank == 0 and after(step)), steps=12) == []

"""Slowness that grows, or goes from rank to rank: found with its cause, and not made of noise."""

import numpy as np
import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

MS = 1e6


def run_of(forward, *, gc=None, data=None, tokens=None, delay=None):
    """Ranks x steps of forward times in ms, and of what else is recorded; nothing is captured."""
    held, parts = {}, []
    for r, mine in enumerate(np.asarray(forward, float)):
        parts.append(Part(ordinal=r, rank=r))
        rows = []
        for step, ms in enumerate(mine):
            told = {"phase_forward": ms, "phase_data": 1.0 if data is None else data[r][step]}
            told |= {name: m[r][step] for name, m in (("gc_time", gc), ("run_delay", delay)) if m is not None}
            rows += [{"step": step, "metric": name, "value": value * MS, "unit": "ns"} for name, value in told.items()]
        held["metrics", r] = Table.from_rows("metrics", rows)
        steps = [
            {"step": s, "host_ts": int(s * 200 * MS), "host_dur": int(100 * MS), "kind": "train", "captured": False,
             "complete": True, "marked": "marked", "tokens": None if tokens is None else int(tokens[r][s])}
            for s in range(len(mine))
        ]  # fmt: skip
        held["steps", r] = Table.from_rows("steps", steps)
    return study_of(Run(Manifest(run_id="m", parts=parts), MemoryStore(held), "", "dtprof"))


def rules(lens):
    return {f.rule: f for f in findings(lens) if f.rule.startswith("straggler.")}


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def flat(rng, ranks=2, steps=60, noise=1.0):
    return 40 + noise * np.abs(rng.standard_t(3, (ranks, steps)))


def test_a_rank_that_grows_is_named_with_what_it_costs_now(rng):
    times = flat(rng)
    times[1] += np.linspace(0, 20, 60)
    finding = rules(run_of(times))["straggler.growing"]
    assert finding.ranks == (1,)
    assert finding.seconds_per_step == pytest.approx(0.0175, rel=0.15)


def test_all_ranks_that_grow_alike_are_no_straggler(rng):
    assert rules(run_of(flat(rng) + np.linspace(0, 20, 60))) == {}


def test_a_jump_without_cores_is_no_growth(rng):
    times = flat(rng)
    lack = np.vstack([np.zeros(60), np.linspace(0, 20, 60)])
    assert rules(run_of(times + lack, delay=lack)) == {}


@pytest.mark.parametrize("ranks", [2, 8])
def test_noise_alone_is_nothing(rng, ranks):
    for _ in range(30):
        tokens = rng.integers(900, 1100, (ranks, 60))
        gc = rng.exponential(0.2, (ranks, 60))
        assert rules(run_of(flat(rng, ranks, noise=6), tokens=tokens, gc=gc)) == {}


def test_tokens_that_vary_make_ranks_slow_in_turn(rng):
    tokens = rng.integers(500, 1500, (4, 60))
    finding = rules(run_of(tokens / 25 + rng.normal(0, 1, (4, 60)), tokens=tokens))["straggler.rotating"]
    assert finding.ranks == (0, 1, 2, 3)
    expected = (tokens.max(axis=0) - np.median(tokens, axis=0)).mean() / 25
    assert finding.seconds_per_step == pytest.approx(expected / 1e3, rel=0.15)
    assert "tokens" in finding.title and "batches by tokens" in finding.next


def test_collections_in_turn_are_named(rng):
    gc = np.zeros((4, 60))
    for step in range(60):
        gc[step % 4, step] = 15
    finding = rules(run_of(flat(rng, 4, noise=0.2) + gc, gc=gc))["straggler.rotating"]
    assert "garbage collection" in finding.title
    assert finding.seconds_per_step == pytest.approx(0.015, rel=0.1)


def test_few_steps_and_unknown_phases_make_it_abstain(rng):
    assert "20 are needed" in run_of(flat(rng, steps=10)).result("moving_stragglers").abstained
    lens = run_of(flat(rng))
    lens.run.store._tables["metrics", 0] = Table.empty("metrics")
    assert "not timed" in lens.result("moving_stragglers").abstained

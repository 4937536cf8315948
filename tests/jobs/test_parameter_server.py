"""The job parameter_server: staleness has its bound, synchronous training is that of one process, asynchrony can pay."""

import json
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import parameter_server  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SMALL = ["--steps", "5", "--layers", "2", "--dim", "32", "--seq", "16", "--vocabulary", "64", "--batch", "2"]
LOSS_TOLERANCE = 2e-5
LAYER = '[[layers]]\nname = "block"\nrepeat = 4\nforward_ms = 2.0\nbackward_ms = 3.0\ntensors = [16384]\n'
STALENESS, STEPS, RANKS = 1, 16, 3


def options(*words):
    return parameter_server.parser().parse_args([*SMALL, *words])


def server(*words, workers=2):
    torch.manual_seed(0)
    return parameter_server.Server(options("--optimizer", "sgd", "--lr", "1", *words), workers)


def values(run, rank, metric):
    """Of every step, in order."""
    table = run.table("metrics", rank)
    rows = table.take(table.is_("metric", metric))
    assert rows["step"].tolist() == list(range(len(rows)))
    return rows["value"].astype(int)


@pytest.fixture(scope="module")
def stale(run, tmp_path_factory):
    """An asynchronous run of three workers, of which one is slow."""
    folder = tmp_path_factory.mktemp("stale")
    (folder / "layers.toml").write_text(LAYER)
    words = ["--emulate", str(folder / "layers.toml"), "--steps", str(STEPS), "--staleness", str(STALENESS), "--capture", "5:8"]
    fault = ["--inject", "slow_rank=2:60ms", "--out", str(folder / "run")]
    run(RANKS, ["-m", "dtprof_sample_jobs.parameter_server", *SMALL, *words, *fault])
    return dtprof.open_run(folder / "run")


def test_every_applied_gradient_has_a_staleness_within_its_bound(stale):
    clocks = [values(stale, rank, "staleness") for rank in range(RANKS)]
    assert [len(found) for found in clocks] == [STEPS] * RANKS
    assert max(found.max() for found in clocks) == STALENESS
    updates = [values(stale, rank, "staleness_updates") for rank in range(RANKS)]
    assert 0 < max(found.max() for found in updates) <= (2 * STALENESS + 1) * (RANKS - 1)


def test_the_run_opens_and_its_ranges_tell_the_phases(stale):
    assert stale.manifest.job == "parameter_server"
    for rank in range(RANKS):
        events = stale.table("events", rank)
        assert {"data", "forward", "backward", "optimizer"} <= set(events.text("phase"))
        assert {"pull", "push"} <= set(events.text("name"))


def test_synchronous_training_is_that_of_one_process(run, tmp_path):
    words = ["--mode", "sync", "--losses", str(tmp_path / "losses"), "--no-dtprof"]
    run(2, ["-m", "dtprof_sample_jobs.parameter_server", *SMALL, *words])
    expected, _ = one_process(options(*words), ranks=2, micro=1)
    for rank in range(2):
        assert losses_of(tmp_path / "losses", rank) == pytest.approx(expected[rank], rel=LOSS_TOLERANCE)


def test_an_asynchronous_gradient_counts_for_one_of_the_workers():
    made = server("--staleness", "3")
    before, updates, slowest = made.pull(0)
    assert made.push(0, torch.ones_like(before), updates, slowest) == (0, 0)
    after, updates, _ = made.pull(0)
    assert updates == 1
    assert torch.allclose(after, before - 0.5)
    assert made.push(1, torch.ones_like(before), 0, 0) == (0, 1)


def test_a_worker_that_is_too_far_ahead_waits_for_the_slowest():
    made = server("--staleness", "1")
    gradient = torch.zeros_like(made.pull(0)[0])
    staleness = []
    for _ in range(2):
        _, updates, slowest = made.pull(0)
        staleness.append(made.push(0, gradient, updates, slowest))
    assert staleness == [(0, 0), (1, 0)]
    got = []
    ahead = threading.Thread(target=lambda: got.append(made.pull(0)[1:]))
    ahead.start()
    ahead.join(0.2)
    assert ahead.is_alive()
    made.push(1, gradient, *made.pull(1)[1:])
    ahead.join(10)
    assert got == [(3, 1)]


def test_a_worker_that_never_comes_is_an_error(monkeypatch):
    monkeypatch.setattr(parameter_server, "PATIENCE_S", 0.05)
    made = server("--mode", "sync")
    vector, updates, slowest = made.pull(0)
    with pytest.raises(TimeoutError, match=r"clocks are \[0, 0\]"):
        made.push(0, vector, updates, slowest)


def test_what_cannot_be_run_is_refused_before_anything_starts():
    with pytest.raises(InputError, match="behind themselves"):
        parameter_server.check(options("--staleness", "-1"), 2)


def rate(path, capsys):
    """Steps per second of all workers, by the report."""
    from dtprof.cli import main

    assert main(["report", str(path), "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    return sum(1e9 / np.mean([step["dur_ns"] for step in rank["steps"]]) for rank in ranks)


@pytest.mark.slow
def test_asynchrony_beats_synchrony_with_a_slow_worker(run, tmp_path, capsys):
    (tmp_path / "layers.toml").write_text(LAYER)
    words = ["--emulate", str(tmp_path / "layers.toml"), "--steps", "20", "--staleness", "20", "--inject", "slow_rank=1:60ms"]
    rates = []
    for mode in ("async", "sync"):
        out = tmp_path / mode
        run(2, ["-m", "dtprof_sample_jobs.parameter_server", *SMALL, *words, "--mode", mode, "--out", str(out)])
        rates.append(rate(out, capsys))
    # a step of 20 ms: one worker at 20 ms and one at 80, against two at 80
    assert rates[0] > 1.5 * rates[1]

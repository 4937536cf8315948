"""The job context_parallel: it trains as one process would, with both methods and both splits; rings overlap; work is known."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof import intervals  # noqa: E402
from dtprof.cli import main  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import context_parallel  # noqa: E402
from dtprof_sample_jobs.common.context import Split  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SIZE = {"steps": 4, "layers": 2, "dim": 32, "seq": 16, "vocabulary": 64, "batch": 2}
SMALL = [word for name, n in SIZE.items() for word in (f"--{name}", str(n))]
# a sum over ranks is taken in another order than one process takes it
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-5


def options(*words):
    return context_parallel.parser().parse_args([*SMALL, *words])


def compare(run, scripts, folder, ranks, words, *, measured=False):
    """Run the job on ranks and in one process; mean losses must agree, and gradients to a part of each tensor's largest."""
    args = options(*words)
    file, losses = folder / "gradients", folder / "losses"
    own = ["--out", str(folder / "run"), "--losses", str(losses), *([] if measured else ["--no-dtprof"])]
    run(ranks, [str(scripts / "gradients.py"), "context_parallel", str(file), *SMALL, *words, *own])
    (expected,), gradients = one_process(args, ranks=1, micro=1)
    assert np.mean([losses_of(losses, rank) for rank in range(ranks)], 0) == pytest.approx(expected, rel=LOSS_TOLERANCE)
    for rank in range(ranks):
        found = torch.load(f"{file}.rank{rank}")
        assert set(found) == set(gradients)
        for name, grad in gradients.items():
            assert (found[name] - grad).abs().max() <= GRADIENT_TOLERANCE * grad.abs().max(), name


@pytest.fixture(scope="module")
def ring(run, scripts, tmp_path_factory):
    """One measured run for all quick tests."""
    folder = tmp_path_factory.mktemp("ring")
    compare(run, scripts, folder, 2, ["--steps", "8", "--capture", "3:6"], measured=True)
    return dtprof.open_run(folder / "run")


def test_a_ring_trains_as_one_process(ring):
    assert ring.manifest.job == "context_parallel"


MODES = [
    (1, ""),
    (2, "--split contiguous"),
    (2, "--inject unbalanced_split=all --clip 0.1"),
    (2, "--no-overlap --checkpointing selective"),
    (2, "--checkpointing full"),
    (2, "--method ulysses"),
    (2, "--method ulysses --checkpointing full --attention math --block-ms 2"),
    (3, "--seq 18"),
    (4, ""),
    (4, "--split contiguous --block-ms 2"),
    (4, "--method ulysses --split contiguous"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mode"), MODES)
def test_every_mode_trains_as_one_process(run, scripts, tmp_path, ranks, mode):
    compare(run, scripts, tmp_path, ranks, mode.split())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_mixed_precision_stays_near_fp32(run, tmp_path, method):
    words = ["--method", method, "--precision", "bf16", "--losses", str(tmp_path / "losses"), "--no-dtprof"]
    run(2, ["-m", "dtprof_sample_jobs.context_parallel", *SMALL, *words])
    (expected,), _ = one_process(options(), ranks=1, micro=1)
    found = np.mean([losses_of(tmp_path / "losses", rank) for rank in range(2)], 0)
    assert found == pytest.approx(expected, rel=0.01)
    assert found != pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["zigzag", "contiguous"])
def test_a_split_gives_every_place_to_one_rank_and_every_pair_of_parts_to_its_queries(kind, ranks):
    split = Split(kind, ranks)
    places = torch.cat([split.places(rank, 24) for rank in range(ranks)])
    assert sorted(places.tolist()) == list(range(24))
    seen = [
        (split.of(rank)[i], split.of(source)[j], work)
        for rank in range(ranks)
        for source in range(ranks)
        for i, j, work in split.pairs(rank, source)
    ]
    causal = [(a, b, 0.5 if a == b else 1.0) for a in range(split.parts) for b in range(a + 1)]
    assert sorted(seen) == causal


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zigzag_is_balanced_and_the_last_of_equal_parts_has_nearly_twice_the_mean(ranks):
    balanced, unbalanced = Split("zigzag", ranks), Split("contiguous", ranks)
    assert [balanced.work(rank) for rank in range(ranks)] == pytest.approx([1 / ranks] * ranks)
    assert [unbalanced.work(rank) for rank in range(ranks)] == pytest.approx([(2 * r + 1) / ranks**2 for r in range(ranks)])
    assert unbalanced.work(ranks - 1) * ranks == pytest.approx((2 * ranks - 1) / ranks)


def messages(run, rank, op):
    """(step, phase, bytes) of a rank's sends or receives in the captured steps, in the order of time."""
    comm, events = run.table("comm", rank), run.table("events", rank)
    rows = sorted(comm["event"][comm.is_("op", op)].tolist(), key=lambda at: events["ts"][at])
    sizes = dict(zip(comm["event"].tolist(), comm["bytes_in"].tolist(), strict=True))
    return [(int(events["step"][at]), events.text("phase")[at], sizes[at]) for at in rows if events["step"][at] >= 0]


def test_what_one_rank_sends_the_next_one_receives_and_it_is_what_theory_says(ring):
    """Per block: keys and values c - 1 times in each pass, and their gradients c times in backward."""
    keys_and_values = 2 * SIZE["batch"] * SIZE["seq"] // 2 * SIZE["dim"] * 4
    step = [("forward", keys_and_values)] * SIZE["layers"] + [("backward", keys_and_values)] * 3 * SIZE["layers"]
    for rank in range(2):
        sent = messages(ring, rank, "send")
        assert sent == [(k, *message) for k in (3, 4, 5) for message in step]
        assert messages(ring, 1 - rank, "recv") == sent


def test_every_collective_is_matched_across_the_ranks_on_its_axis(ring):
    found = ring.table("collectives")
    together = found.take(~found.is_("op", "send", "recv"))
    assert set(together.text("op")) == {"all_reduce"}  # DDP's gradients
    assert set(together["n_present"].tolist()) == {2}
    assert set(together.text("matched_by")) == {"seq"}
    for rank in range(2):
        assert set(ring.table("groups", rank).text("axis")) == {"cp"}


def test_a_run_has_mesh_groups_and_tags(ring):
    assert ring.manifest.mesh == {"cp": 2}
    for rank in range(2):
        events = ring.table("events", rank)
        turns = events.take(events.is_("name", "ring turn 0", "ring turn 1"))
        seen = set(zip(turns["step"].tolist(), turns.text("phase"), turns.text("layer"), turns.text("name"), strict=True))
        assert seen == {
            (step, phase, f"blocks.{n}", f"ring turn {turn}")
            for step in (3, 4, 5) for phase in ("forward", "backward") for n in range(2) for turn in range(2)
        }  # fmt: skip


IMPOSSIBLE = [
    (2, "--seq 18", "cannot be cut into 4 parts"),
    (3, "--split contiguous", "--seq 16 cannot be cut into 3 parts"),
    (8, "--method ulysses", "--heads 4 cannot be divided among 8 ranks"),
    (2, "--method ulysses --no-overlap", "--no-overlap is for the ring"),
    (2, "--method ulysses --inject unbalanced_split=all", "unbalanced_split is for a ring"),
    (1, "--inject unbalanced_split=all", "unbalanced_split is for a ring of two ranks"),
    (2, "--emulate uniform", "no emulated layers"),
]


@pytest.mark.parametrize(("ranks", "words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(ranks, words, message):
    with pytest.raises(InputError, match=message):
        context_parallel.check(options(*words.split()), ranks)


def test_torchs_own_ring_is_refused_where_it_cannot_train(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="cannot train on the CPU"):
        context_parallel.check(options("--method", "torch"), 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    context_parallel.check(options("--method", "torch"), 2)
    with pytest.raises(InputError, match="a split and an attention of its own"):
        context_parallel.check(options("--method", "torch", "--split", "contiguous"), 2)


def operators(run, rank):
    """Emulated computing of a rank: a cover of its operators, and the least of their time in a captured step, in ms."""
    events = run.table("events", rank)
    rows = events.take(events.is_("name", "dtprof_lab::forward", "dtprof_lab::backward_input") & (events["step"] >= 0))
    least = np.bincount(rows["step"], weights=rows["dur"] / 1e6)[np.unique(rows["step"])].min()
    return intervals.union(rows["ts"], rows["ts"] + rows["dur"]), least


def shortest(run, rank, name):
    """Least time of a range of a name, in ms: what else the machine does only adds."""
    events = run.table("events", rank)
    return events["dur"][events.is_("kind", "range") & events.is_("name", name) & (events["step"] >= 0)].min() / 1e6


@pytest.mark.slow
def test_an_unbalanced_split_takes_the_last_rank_half_as_long_again(run, scripts, tmp_path):
    """(2c - 1) / c of the mean, with two ranks 3/2; --block-ms is of the whole sequence, and twice in backward."""
    words = [*SMALL, "--steps", "8", "--capture", "2:7", "--block-ms", "120"]
    faults = {"healthy": [], "unbalanced": ["--inject", "unbalanced_split=all"]}
    plan = [
        {"name": n, "module": "dtprof_sample_jobs.context_parallel", "words": [*words, *w, "--out", str(tmp_path / n)]}
        for n, w in faults.items()
    ]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(tmp_path / "plan.json")])
    healthy, unbalanced = (dtprof.open_run(tmp_path / name) for name in faults)
    mean = SIZE["layers"] * 3 * 120 / 2
    assert [operators(healthy, rank)[1] for rank in range(2)] == pytest.approx([mean, mean], rel=0.1)
    assert [operators(unbalanced, rank)[1] for rank in range(2)] == pytest.approx([mean / 2, mean * 3 / 2], rel=0.1)
    more = shortest(unbalanced, 1, "forward") - shortest(healthy, 1, "forward")
    print(f"forward: {more:.1f} ms more than {shortest(healthy, 1, 'forward'):.1f} ms")
    assert more == pytest.approx(SIZE["layers"] * 120 / 4, rel=0.1)


@pytest.mark.slow
def test_messages_of_the_ring_are_hidden_behind_computing(network_lab, tmp_path):
    """30 ms of computing per turn, and messages of 20 ms: 320 KB at 100 mbit/s, of which 70 KB may pass unshaped."""
    sizes = {"steps": 7, "layers": 2, "batch": 8, "seq": 160, "dim": 64, "vocabulary": 64, "capture": "2:6", "block-ms": 120}
    size = [word for option, n in sizes.items() for word in (f"--{option}", str(n))]
    forward, hidden = {}, {}
    for name, words in (("overlap", []), ("none", ["--no-overlap"])):
        out = tmp_path / name
        code = main(["job", "context_parallel", "--lab", "rate=100mbit", *size, *words, "--out", str(out)])
        assert code == 0
        found = dtprof.open_run(out)
        comm, events = found.table("comm", 0), found.table("events", 0)
        rows = comm["event"][comm.is_("op", "send", "recv")]
        spans = intervals.union(events["ts"][rows], events["ts"][rows] + events["dur"][rows])
        hidden[name] = intervals.total(intervals.intersect(spans, operators(found, 0)[0])) / intervals.total(spans)
        forward[name] = max(shortest(found, rank, "forward") for rank in range(2))
    print(f"hidden {hidden}, forward {forward} ms")
    assert hidden["overlap"] > 0.5
    assert hidden["none"] < 0.05
    # per block one message hides behind one turn
    assert forward["none"] - forward["overlap"] > 2 * 20 * 0.7

"""The job tensor_parallel: it trains as one process would, in every mode; traffic and activations are those of theory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import tensor_parallel  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SIZE = {"steps": 4, "layers": 2, "dim": 32, "seq": 16, "vocabulary": 64, "batch": 2}
SMALL = [word for name, n in SIZE.items() for word in (f"--{name}", str(n))]
# a sum over ranks is taken in another order than one process takes it
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-5
BETWEEN = SIZE["batch"] * SIZE["seq"] * SIZE["dim"] * 4  # bytes of batch x sequence x dim in fp32


def options(*words):
    return tensor_parallel.parser().parse_args([*SMALL, *words])


def compare(run, scripts, folder, ranks, words, *, measured=False):
    """Run the job on ranks and in one process; losses must agree, and gradients to a part of each tensor's largest."""
    args = options(*words)
    file, losses = folder / "gradients", folder / "losses"
    own = ["--out", str(folder / "run"), "--losses", str(losses), *([] if measured else ["--no-dtprof"])]
    run(ranks, [str(scripts / "gradients.py"), "tensor_parallel", str(file), *SMALL, *words, *own])
    (expected,), gradients = one_process(args, ranks=1, micro=1)
    for rank in range(ranks):
        assert losses_of(losses, rank) == pytest.approx(expected, rel=LOSS_TOLERANCE)
        found = torch.load(f"{file}.rank{rank}")
        assert set(found) == set(gradients)
        for name, grad in gradients.items():
            assert found[name].shape == grad.shape
            assert (found[name] - grad).abs().max() <= GRADIENT_TOLERANCE * grad.abs().max(), name


def measured(run, scripts, folder, *words):
    compare(run, scripts, folder, 2, ["--steps", "8", "--capture", "3:6", *words], measured=True)
    return dtprof.open_run(folder / "run")


@pytest.fixture(scope="module")
def plain(run, scripts, tmp_path_factory):
    return measured(run, scripts, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def divided(run, scripts, tmp_path_factory):
    return measured(run, scripts, tmp_path_factory.mktemp("divided"), "--sequence-parallel")


def test_both_forms_train_as_one_process(plain, divided):
    assert {plain.manifest.job, divided.manifest.job} == {"tensor_parallel"}


MODES = [
    (1, "--sequence-parallel --loss-parallel"),
    (2, "--loss-parallel"),
    (2, "--sequence-parallel --loss-parallel --clip 0.1"),
    (2, "--clip 0.1"),
    (2, "--sequence-parallel --checkpointing full"),
    (2, "--sequence-parallel --checkpointing selective --attention math"),
    (2, "--sequence-parallel --block-ms 2 --inject slow_backward=1:2ms"),
    (4, "--sequence-parallel --loss-parallel"),
    (4, ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "mode"), MODES)
def test_every_mode_trains_as_one_process(run, scripts, tmp_path, ranks, mode):
    compare(run, scripts, tmp_path, ranks, mode.split())


@pytest.mark.slow
def test_mixed_precision_stays_near_fp32(run, tmp_path):
    words = ["--sequence-parallel", "--precision", "bf16", "--losses", str(tmp_path / "losses"), "--no-dtprof"]
    run(2, ["-m", "dtprof_sample_jobs.tensor_parallel", *SMALL, *words])
    (expected,), _ = one_process(options(), ranks=1, micro=1)
    found = losses_of(tmp_path / "losses", 0)
    assert found == pytest.approx(expected, rel=0.01)
    assert found != pytest.approx(expected, rel=1e-7)


def activation_bytes(run, rank):
    metrics = run.table("metrics", rank)
    (value,) = metrics["value"][metrics.is_("metric", "activation_bytes")]
    return value


def test_sequence_parallelism_halves_what_the_norms_keep_and_nothing_else(plain, divided):
    """Of each norm its input, and mean and deviation of every token (Korthikanti et al., 2022, section 4.2)."""
    norms = 2 * SIZE["layers"] + 1
    kept = norms * (BETWEEN + 2 * 4 * SIZE["batch"] * SIZE["seq"])
    for rank in range(2):
        assert activation_bytes(plain, rank) - activation_bytes(divided, rank) == kept / 2


def traffic(run, rank):
    """(phase, op, bytes in) -> operations per step, on the axis tp."""
    comm, events, groups = (run.table(name, rank) for name in ("comm", "events", "groups"))
    axes = dict(zip(groups["id"].tolist(), groups.text("axis"), strict=True))
    assert {axes.get(g) for g in comm["group"].tolist()} == {"tp"}
    found = {}
    for row, op in enumerate(comm.text("op")):
        at = comm["event"][row]
        step, phase = int(events["step"][at]), events.text("phase")[at]
        if step >= 0:
            key = (phase, op, int(comm["bytes_in"][row]))
            found.setdefault(key, {}).setdefault(step, []).append(row)
    assert all({len(rows) for rows in steps.values()} == {len(next(iter(steps.values())))} for steps in found.values())
    return {key: len(next(iter(steps.values()))) for key, steps in found.items()}


LAYERS, LOGITS = SIZE["layers"], SIZE["batch"] * SIZE["seq"] * SIZE["vocabulary"] * 4
POSITIONS, NORM = SIZE["seq"] * SIZE["dim"] * 4, SIZE["dim"] * 4


def test_plain_traffic_is_two_all_reduces_per_block_and_pass(plain):
    for rank in range(2):
        assert traffic(plain, rank) == {
            ("forward", "all_reduce", BETWEEN): 2 * LAYERS + 1,  # 1 of the embedding
            ("forward", "all_reduce", POSITIONS): 1,
            ("forward", "all_gather", LOGITS // 2): 1,
            ("backward", "all_reduce", BETWEEN): 2 * LAYERS + 1,  # 1 of the head
        }


def test_sequence_parallel_traffic_is_as_much_in_two_parts(divided):
    """gloo does a reduce-scatter by an all-reduce, and names it so."""
    for rank in range(2):
        assert traffic(divided, rank) == {
            ("forward", "all_reduce", BETWEEN): 2 * LAYERS + 1,
            ("forward", "all_reduce", POSITIONS): 1,
            ("forward", "all_gather", BETWEEN // 2): 2 * LAYERS + 1,
            ("forward", "all_gather", LOGITS // 2): 1,
            ("backward", "all_reduce", BETWEEN): 2 * LAYERS + 1,
            ("backward", "all_gather", BETWEEN // 2): 2 * LAYERS + 1,
            ("backward", "all_gather", POSITIONS // 2): 1,
            # weight and bias of each norm, of whose gradients each rank has a part of the sum
            ("optimizer", "all_reduce", NORM): 2 * (2 * LAYERS + 1),
        }


def test_every_operation_is_matched_across_the_ranks(plain, divided):
    for run in (plain, divided):
        found = run.table("collectives")
        assert len(found) > 0
        assert set(found["n_present"].tolist()) == {2}
        assert set(found.text("matched_by")) == {"seq"}
        size = found["bytes"][found.is_("op", "all_gather")]
        assert set(size.tolist()) >= {LOGITS}  # of all ranks, also where torch's functional form is recorded


def test_a_run_has_mesh_groups_and_tags(divided):
    assert divided.manifest.mesh == {"tp": 2}
    assert divided.manifest.coordinates == {"0": {"tp": 0}, "1": {"tp": 1}}
    for rank in range(2):
        events = divided.table("events", rank)
        seen = set(zip(events["step"].tolist(), events.text("phase"), events.text("layer"), strict=True))
        for step in (3, 4, 5):
            assert {(step, phase, f"blocks.{n}") for n in range(LAYERS) for phase in ("forward", "backward")} <= seen
            assert {phase for s, phase, _ in seen if s == step} >= {"data", "forward", "backward", "optimizer"}
        # a loaded machine may take long to write a trace, which is said
        assert all("stood still" in what for what in divided.table("quality", rank).text("what"))


@pytest.mark.slow
def test_the_time_of_a_block_is_divided_among_the_ranks(run, tmp_path):
    words = ["--block-ms", "20", "--steps", "6", "--capture", "2:5", "--out", str(tmp_path / "run")]
    run(2, ["-m", "dtprof_sample_jobs.tensor_parallel", *SMALL, *words])
    events = dtprof.open_run(tmp_path / "run").table("events", 0)
    for name, ms in (("dtprof_lab::forward", 10), ("dtprof_lab::backward_input", 20)):
        times = events["dur"][events.is_("name", name)] / 1e6
        assert len(times) == 3 * LAYERS
        assert np.median(times) == pytest.approx(ms, rel=0.1)


IMPOSSIBLE = [
    (3, "", "--heads 4 cannot be divided among 3 ranks"),
    (2, "--sequence-parallel --seq 15", "--seq 15 cannot be divided"),
    (2, "--vocabulary 63", "--vocabulary 63 cannot be divided"),
    (2, "--emulate uniform", "no emulated layers"),
    (2, "--block-ms -1", "no time in ms"),
]


@pytest.mark.parametrize(("ranks", "words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(ranks, words, message):
    with pytest.raises(InputError, match=message):
        tensor_parallel.check(options(*words.split()), ranks)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asynchronous_tensor_parallelism_is_refused_without_a_gpu():
    with pytest.raises(InputError, match="CUDA symmetric memory"):
        tensor_parallel.check(options("--async-tp", "--sequence-parallel"), 2)


def test_asynchronous_tensor_parallelism_needs_sequence_parallelism(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(InputError, match="add --sequence-parallel"):
        tensor_parallel.check(options("--async-tp"), 2)

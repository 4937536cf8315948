"""Options that jobs share: loss scaling, offloading, learning rate, gradient noise; faults of mixed precision and of data."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import context_parallel, ddp, elastic, hybrid, tensor_parallel  # noqa: E402
from dtprof_sample_jobs.common import offload  # noqa: E402
from dtprof_sample_jobs.common.data import CorpusTokens  # noqa: E402
from dtprof_sample_jobs.common.model import GPT  # noqa: E402
from dtprof_sample_jobs.common.noise import estimate  # noqa: E402

SIZES = ["--steps", "8", "--layers", "2", "--dim", "64", "--capture", "none"]
RUNS = {
    "plain": [],
    "activations": ["--offload-activations", "PLACE"],
    "states": ["--offload-states", "PLACE", "--offload-parameters", "PLACE"],
    "fp16": ["--precision", "fp16"],
    "fp16_overflow": ["--precision", "fp16", "--inject", "fp16_overflow=all:3"],
    "clip": ["--precision", "fp16", "--clip", "0.5"],
    "clip_before_unscale": ["--precision", "fp16", "--clip", "0.5", "--inject", "clip_before_unscale=all"],
    "rate": ["--lr", "0.001", "--lr-scaling", "sqrt", "--base-batch", "2", "--warm-up", "4"],
    "noise": ["--noise-scale", "--optimizer", "sgd", "--lr", "1e-9"],
}
BLOCK_PARAMETERS = 4 * (12 * 64 * 64 + 13 * 64)  # bytes of one block of width 64


@pytest.fixture(scope="module")
def runs(run, scripts, tmp_path_factory):
    """One DDP job on two ranks for each set of options; each value is (metrics of rank 0 by name, losses of rank 0)."""
    folder = tmp_path_factory.mktemp("options")
    plan = []
    for name, words in RUNS.items():
        (folder / f"{name}-place").mkdir()
        words = [str(folder / f"{name}-place") if w == "PLACE" else w for w in words]
        words += [*SIZES, "--losses", str(folder / f"{name}.losses"), "--out", str(folder / name)]
        plan.append({"name": name, "module": "dtprof_sample_jobs.ddp", "words": words})
    (folder / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(folder / "plan.json")])
    return {name: (metrics(folder / name), json.loads((folder / f"{name}.losses.rank0").read_text())) for name in RUNS}


def metrics(folder):
    found = {}
    table = dtprof.open_run(folder).table("metrics", 0)
    for name, value in zip(table.text("metric"), table["value"].tolist(), strict=True):
        found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("name", ["activations", "states"])
def test_offloading_changes_no_bit_of_the_loss(runs, name):
    assert runs[name][1] == runs["plain"][1]


def test_states_and_parameters_move_the_bytes_they_have(runs):
    measured = runs["states"][0]
    model = GPT(1024, 2, 64, 4, 64)
    parameters = sum(p.nbytes for p in model.parameters())
    blocks = sum(p.nbytes for p in model.blocks.parameters())
    assert blocks == 2 * BLOCK_PARAMETERS
    states = 2 * parameters  # the two moments of AdamW
    # out: states and changed parameters after the update; in: states once, parameters for forward, backward and the update
    assert measured["offload_out"][1:] == [states + blocks] * 7
    assert measured["offload_in"][1:] == [states + 3 * blocks] * 7


def test_activations_come_back_as_often_as_they_left(runs, tmp_path):
    measured = runs["activations"][0]
    saved = []
    model = GPT(1024, 2, 64, 4, 64)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    for block in model.blocks:  # what autograd keeps of a block, counted independently

        def pack(tensor):
            saved.append(0 if tensor.untyped_storage()._cdata in own else tensor.nbytes)
            return tensor

        block.forward = hooked(block.forward, pack)
    model(torch.zeros(4, 65, dtype=torch.int64))
    assert measured["offload_out"] == measured["offload_in"] == [sum(saved)] * 8


def hooked(forward, pack):
    def inside(*inputs):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return forward(*inputs)

    return inside


def test_nothing_is_left_in_the_folder(runs, tmp_path):
    blocks = GPT(64, 1, 16, 2, 8).blocks
    offload.offload_activations(blocks, str(tmp_path))
    blocks[0](torch.ones(1, 8, 16)).sum().backward()
    assert list(tmp_path.iterdir())
    offload.forget()
    assert not list(tmp_path.iterdir())


def test_a_scaled_loss_is_the_loss(runs):
    plain, scaled = (np.array([float.fromhex(x) for x in runs[name][1]]) for name in ("plain", "fp16"))
    np.testing.assert_allclose(scaled, plain, rtol=2e-3)
    assert runs["fp16"][0]["loss_scale"] == [65536.0] * 8
    assert runs["fp16"][0]["skipped"] == [0.0] * 8


def test_an_overflow_skips_the_step_and_halves_the_scale(runs):
    measured = runs["fp16_overflow"][0]
    assert measured["skipped"] == [0, 0, 1, 0, 0, 1, 0, 0]
    assert measured["loss_scale"] == [65536.0] * 3 + [32768.0] * 3 + [16384.0] * 2
    losses = runs["fp16_overflow"][1]
    assert losses[:3] == runs["fp16"][1][:3]
    assert losses[3] != runs["fp16"][1][3]


def test_clipping_before_unscaling_leaves_next_to_nothing(run, scripts, tmp_path):
    moved = {}
    for fault in ([], ["--inject", "clip_before_unscale=all"]):
        args = ddp.parser().parse_args(["--precision", "fp16", "--clip", "0.5", "--optimizer", "sgd", "--lr", "1", *fault])
        moved[bool(fault)] = moved_by_one_update(args)
    assert moved[False] == pytest.approx(0.5, rel=1e-3)
    assert moved[True] == pytest.approx(0.5 / 65536, rel=1e-3)


def moved_by_one_update(args):
    """How far plain SGD at rate 1 moves a parameter whose gradient has norm 30."""
    from dtprof_sample_jobs.common.faults import Faults
    from dtprof_sample_jobs.common.update import make_optimizer, make_scaler, update

    parameter = torch.nn.Parameter(torch.zeros(100))
    optimizer = make_optimizer([parameter], kind="sgd", rate=1.0)
    scaler = make_scaler(args, torch.device("cpu"))
    scaler.scale((3 * parameter).sum()).backward()
    update(optimizer, [parameter], args.clip, scaler, Faults(args.inject, 0))
    return parameter.norm().item()


def test_the_rate_is_scaled_and_warmed_up(runs):
    whole = 0.001 * math.sqrt(2 * 4 / 2)
    expected = [whole / 4, whole / 2, 3 * whole / 4, *[whole] * 5]
    assert runs["rate"][0]["learning_rate"] == pytest.approx(expected)


def test_the_noise_scale_of_known_gradients():
    rng = np.random.default_rng(0)
    gradient, deviation, small, ranks, width = 0.3, 2.0, 8, 4, 200
    found = []
    for _ in range(400):
        samples = gradient + deviation * rng.standard_normal((ranks, small, width))
        means = samples.mean(1)
        found.append(estimate((means**2).sum(1).mean(), (means.mean(0) ** 2).sum(), small, small * ranks))
    square, noise = np.mean(found, axis=0)
    assert square == pytest.approx(width * gradient**2, rel=0.05)
    assert noise == pytest.approx(width * deviation**2, rel=0.02)


def test_the_job_records_both_norms_and_their_ratio(runs):
    measured = runs["noise"][0]
    small, large = np.array(measured["gradient_square_small"]), np.array(measured["gradient_square_large"])
    assert len(small) == 8
    assert (small > large).all()  # a mean of two gradients is shorter than they are
    squares, noises = estimate(small, large, 4, 8)
    weights = 0.95 ** np.arange(8)[::-1]
    averages = [(weights[7 - k :] @ squares[: k + 1], weights[7 - k :] @ noises[: k + 1]) for k in range(8)]
    expected = [noise / square for square, noise in averages if square > 0]  # a negative estimate gives no ratio
    assert measured.get("gradient_noise_scale", []) == pytest.approx(expected, rel=1e-6)


def test_a_forgotten_set_epoch_repeats_the_order():
    for reshuffle in (True, False):
        data = CorpusTokens(2, 64, seed=0, rank=0, ranks=2, reshuffle=reshuffle)
        same = torch.equal(data.batch(0), data.batch(data.per_epoch))
        assert same is not reshuffle


@pytest.mark.parametrize(
    ("job", "words", "said"),
    [
        (ddp, ["--precision", "fp8"], "CUDA device"),
        (ddp, ["--offload-states", "cpu"], "there already"),
        (ddp, ["--offload-activations", "/nowhere/at/all"], "no such folder"),
        (ddp, ["--lr-scaling", "linear"], "need each other"),
        (ddp, ["--warm-up", "-1"], "no number of steps"),
        (ddp, ["--inject", "fp16_overflow=all:3"], "scaled loss"),
        (ddp, ["--inject", "epoch_not_set=all"], "--data corpus"),
        (ddp, ["--noise-scale", "--compress", "fp16"], "one communication hook"),
        (elastic, ["--warm-up", "3"], "restarted"),
        (hybrid, ["--precision", "fp16", "--dp", "1", "--pp", "1"], "cannot be had in hybrid"),
        (tensor_parallel, ["--offload-states", "."], "cannot be had in tensor_parallel"),
        (context_parallel, ["--precision", "fp8"], "CUDA device"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_starts(job, words, said, monkeypatch):
    if torch.cuda.is_available() and said in ("CUDA device", "there already"):
        pytest.skip("here it can be had")
    args = job.parser().parse_args(words)
    with pytest.raises(InputError, match=said):
        job.check(args, 2)


SCALED = {
    "fsdp": ["--strategy", "zero3", "--clip", "1"],
    "zero1": ["--strategy", "zero1"],
    "moe": ["--clip", "1"],
    "context_parallel": [],
    "pipeline": ["--clip", "1"],
}


@pytest.mark.slow
def test_jobs_of_every_kind_scale_their_loss_and_agree_on_an_overflow(run, scripts, tmp_path):
    plan = []
    for name, words in SCALED.items():
        fault = [] if name in ("fsdp", "zero1") else ["--inject", "fp16_overflow=all:3"]
        module = f"dtprof_sample_jobs.{'fsdp' if name == 'zero1' else name}"
        words = [*words, *fault, *SIZES, "--precision", "fp16", "--out", str(tmp_path / name)]
        plan.append({"name": name, "module": module, "words": words})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(tmp_path / "plan.json")])
    for name in SCALED:
        measured = metrics(tmp_path / name)
        if name == "fsdp":  # its blocks compute in fp16 throughout, for which the first scale is too large
            assert measured["skipped"][-1] == 0
            assert measured["loss_scale"][-1] == 65536 / 2 ** sum(measured["skipped"])
        else:
            assert measured["skipped"] == ([0.0] * 8 if name == "zero1" else [0, 0, 1, 0, 0, 1, 0, 0]), name

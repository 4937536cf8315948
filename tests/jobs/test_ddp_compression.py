"""Gradient compression: the codecs, and what error feedback is good for."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from dtprof_sample_jobs.common.compression import Residual, decode_signs, pack_signs  # noqa: E402

CORPUS = [
    "--data", "corpus", "--layers", "1", "--dim", "64", "--seq", "32", "--batch", "8", "--vocabulary", "256", "--steps", "150",
    "--optimizer", "sgd", "--lr", "0.5", "--no-dtprof",
]  # fmt: skip
RUNS = {
    "none": [],
    "topk": ["--compress", "topk", "--top-k", "0.0003"],
    "topk_forgetful": ["--compress", "topk", "--top-k", "0.0003", "--no-error-feedback"],
    "onebit": ["--compress", "onebit"],
    "powersgd": ["--compress", "powersgd"],
}


class Bucket:
    def __init__(self, values, parameters=(), index=0):
        self.values, self.members, self.number = torch.tensor(values), list(parameters), index

    def buffer(self):
        return self.values

    def parameters(self):
        return self.members

    def index(self):
        return self.number


def test_signs_are_packed_eight_to_a_byte_and_come_back():
    x = torch.tensor([1.0, -2.0, 0.0, -0.5, 3.0, 3.0, -3.0, 1.0, -1.0, 5.0])
    packed = pack_signs(x)
    assert packed.tolist() == [0b10110101, 0b10]
    message = torch.cat([torch.tensor([2.0]).view(torch.uint8), packed])
    assert decode_signs(message, 10).tolist() == [2, -2, 2, -2, 2, 2, -2, 2, -2, 2]


def test_what_was_left_is_added_next_time_and_only_to_the_same_members():
    members, others = [torch.zeros(2)], [torch.zeros(2)]
    residual = Residual(keep=True)
    assert residual.add_to(Bucket([1.0, 2.0], members)).tolist() == [1, 2]
    residual.leave(Bucket([1.0, 2.0], members), torch.tensor([0.5, 0.0]))
    assert residual.add_to(Bucket([1.0, 2.0], members)).tolist() == [1.5, 2]
    assert residual.add_to(Bucket([1.0, 2.0], members, index=1)).tolist() == [1, 2]
    assert residual.add_to(Bucket([1.0, 2.0], others)).tolist() == [1, 2]
    forgetful = Residual(keep=False)
    forgetful.leave(Bucket([1.0, 2.0], members), torch.tensor([0.5, 0.0]))
    assert forgetful.add_to(Bucket([1.0, 2.0], members)).tolist() == [1, 2]


def test_the_gradient_itself_is_not_changed():
    bucket = Bucket([1.0, 2.0])
    Residual(keep=True).add_to(bucket).zero_()
    assert bucket.buffer().tolist() == [1, 2]


@pytest.fixture(scope="module")
def last_loss(run, scripts, tmp_path_factory):
    """Mean loss of the last twenty steps on both ranks, by name of the run; and of the first five."""
    folder = tmp_path_factory.mktemp("compressed")
    plan = [{"name": name, "module": "dtprof_sample_jobs.ddp", "words": CORPUS + words} for name, words in RUNS.items()]
    (folder / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(folder / "plan.json")])
    found = {}
    for name in RUNS:
        curves = [json.loads((folder / f"{name}.losses.rank{r}").read_text()) for r in (0, 1)]
        found[name] = sum(float.fromhex(x) for curve in curves for x in curve[-20:]) / 40
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topk", "onebit", "powersgd"])
def test_with_error_feedback_training_converges(last_loss, name):
    assert last_loss[name] < last_loss["none"] + 0.2


@pytest.mark.slow
def test_top_k_without_error_feedback_visibly_does_not(last_loss):
    assert last_loss["topk_forgetful"] > last_loss["none"] + 0.3
    assert last_loss["topk_forgetful"] > last_loss["topk"] + 0.3

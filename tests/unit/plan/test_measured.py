"""A module's memory without a GPU, against arithmetic and what torch saves when it really runs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dtprof.errors import InputError, MissingExtra
from dtprof.plan.memory.measured import measure
from dtprof.plan.spec import Layout

MODULE = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, size=64, depth=8, words=300):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))
        self.head = nn.Linear(size, words)

    def forward(self, tokens, targets):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return {"loss": functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())}


def build(micro_batch):
    tokens = torch.randint(0, 300, (micro_batch, 128))
    return Net(), (tokens, tokens)


def broken(micro_batch):
    raise RuntimeError("no such data set")
"""
LAYOUT = Layout(8, 4, 32, 128, precision="fp32")


@pytest.fixture
def told(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(MODULE)
    return f"{tmp_path / 'net.py'}:build"


def saved_bytes(told: str) -> int:
    """Bytes that a real forward pass keeps for the backward pass, parameters aside."""
    torch = pytest.importorskip("torch")
    names: dict[str, object] = {}
    exec(Path(told.partition(":")[0]).read_text(), names)
    module, inputs = names["build"](4)  # type: ignore[operator]
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor):  # type: ignore[no-untyped-def]
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = module(*inputs)["loss"]
    assert loss.requires_grad
    return sum(saved.values())


@pytest.mark.slow
def test_one_copy_is_what_a_real_step_holds(told: str) -> None:
    pytest.importorskip("torch")
    found = measure(told, LAYOUT)
    count = found.parameters
    assert count == 300 * 64 * 2 + 300 + 8 * (2 * 64 + 2 * 4 * 64 * 64 + 5 * 64)
    assert found.memory.parameters == 4 * count
    assert found.memory.optimizer == pytest.approx(8 * count, rel=0.001)
    assert found.memory.activations == pytest.approx(saved_bytes(told), rel=0.15)
    assert found.blocks == 8


@pytest.mark.slow
def test_sharding_divides_states_and_recomputation_shortens_what_is_kept(told: str) -> None:
    pytest.importorskip("torch")
    sharded = measure(told, replace(LAYOUT, zero=3))
    again = measure(told, replace(LAYOUT, zero=3, recompute="full"))
    assert sharded.memory.parameters == pytest.approx(4 * sharded.parameters / 8, rel=0.02)
    assert sharded.memory.optimizer == pytest.approx(8 * sharded.parameters / 8, rel=0.02)
    assert sharded.memory.communication > 0
    assert again.memory.activations < sharded.memory.activations / 2
    half = measure(told, replace(LAYOUT, zero=3, precision="bf16"))
    assert half.memory.activations < 0.6 * sharded.memory.activations


@pytest.mark.parametrize(
    ("name", "message"), [("net.py", "FILE.py:FUNCTION"), ("other.py:build", "no such file"), ("net.py:1", "FILE.py:FUNCTION")]
)
def test_a_place_that_is_none(told: str, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(name, LAYOUT, Path(told).parent)


@pytest.mark.parametrize(("key", "value"), [("tp", 2), ("zero", 1), ("optimizer", "muon"), ("recompute", "selective")])
def test_layouts_that_cannot_be_measured_are_refused_at_once(told: str, key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"layout.{key}"):
        measure(told, replace(LAYOUT, **{key: value}))  # type: ignore[arg-type]


def test_a_module_that_fails_is_told_with_its_own_words(told: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"net.py: broken\(4\): RuntimeError: no such data set"):
        measure(told.replace(":build", ":broken"), LAYOUT)


def test_torch_that_is_not_there(told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    with pytest.raises(MissingExtra, match="pip install torch"):
        measure(told, LAYOUT)


def test_a_module_that_does_not_end_is_stopped(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/sleep")
    monkeypatch.setattr("dtprof.plan.memory.measured._WORDS", ("60",))
    with pytest.raises(InputError, match="has not ended"):
        measure(told, LAYOUT, limit_s=0.2)

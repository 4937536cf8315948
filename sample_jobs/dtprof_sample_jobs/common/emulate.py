"""Sleep-emulated compute: a model whose layers take the time and hold the bytes that a file states.

    width_bytes = 4096            # what one layer hands to the next, bytes per sequence (4096)

    [[layers]]
    name = "block"                # layers are named block0, block1, …
    repeat = 12                   # (1)
    forward_ms = 2.0              # per call, whatever the batch
    backward_ms = 4.0
    weight_share = 0.5            # part of backward_ms that is for the weights (0.5); the rest is for the input
    tensors = [4194304, 4096]     # bytes of each parameter tensor (float32)

Timing experiments repeat on a small machine, because a sleeping rank needs no core; DDP's buckets, FSDP's shards and pipeline
stages are what the bytes make them. The loss depends on data and parameters, so that ranks can be compared with one
process: every layer adds a hundredth of the sum of the first elements of its tensors to its input, and all other elements
have gradient zero. The gradient of the input and that of the weights are two nodes of the graph, as schedules that part them
want it; in an ordinary backward pass the one for the input comes first, and a layer's gradients are ready together at its end.
With full activation checkpointing a layer's forward pass takes its time again in backward; selective keeps its result.

``uniform``, ``small`` and ``head`` are files of the package and are named without path and ending.
"""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dtprof
from dtprof.errors import InputError
from dtprof_sample_jobs.common.delay import LONGEST_NS, left

FOLDER = Path(__file__).parent / "emulations"
_STEP = 0.01
_KEYS = {"name", "repeat", "forward_ms", "backward_ms", "weight_share", "tensors"}


@dataclass(frozen=True)
class Layer:
    """One layer: times in ns per call, elements (float32) of each tensor."""

    name: str
    forward_ns: int
    input_ns: int
    weight_ns: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Emulation:
    """What a file states; ``width`` is the number of float32 elements between layers, per sequence. ``str()`` is its name."""

    name: str
    layers: tuple[Layer, ...]
    width: int

    def __str__(self) -> str:
        return self.name


def emulation(text: str) -> Emulation:
    """Read an emulation by path, or by the name of one in the package; InputError says what is wrong and where."""
    path = FOLDER / f"{text}.toml" if text.isidentifier() else Path(text)
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise InputError(f"--emulate {text}: {error.strerror}", f"give a .toml file or one of {known}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}", "write it as the docstring of dtprof_sample_jobs.common.emulate shows") from None
    try:
        layers = tuple(layer for entry in found["layers"] for layer in _layers(entry))
        width = index(found.get("width_bytes", 4096)) // 4
        if width < 1 or not layers:
            raise ValueError("it needs at least one layer, and width_bytes of 4 or more")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path}: {what}", "write it as the docstring of dtprof_sample_jobs.common.emulate shows") from None
    return Emulation(text, layers, width)


def _layers(entry: dict[str, Any]) -> list[Layer]:
    if strange := set(entry) - _KEYS:
        raise ValueError(f"a layer has no key {sorted(strange)[0]!r}")
    name, repeat = str(entry.get("name", "layer")), index(entry.get("repeat", 1))
    forward, backward = (round(float(entry[key]) * 1e6) for key in ("forward_ms", "backward_ms"))
    share, tensors = float(entry.get("weight_share", 0.5)), tuple(index(b) // 4 for b in entry["tensors"])
    if not 0 <= min(forward, backward) <= max(forward, backward) <= LONGEST_NS or not 0 <= share <= 1 or repeat < 1:
        raise ValueError(f"layer {name!r}: times lie in 0 to an hour, shares in 0 to 1, repeat is 1 or more")
    if not tensors or min(tensors) < 1:
        raise ValueError(f"layer {name!r}: tensors have 4 bytes or more")
    weight = round(backward * share)
    return [
        Layer(f"{name}{number}" if repeat > 1 else name, forward, backward - weight, weight, tensors)
        for number in range(repeat)
    ]


class Through(torch.autograd.Function):
    """The identity, which keeps its input, as a layer does; its backward takes the time of the input's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, input_ns: int) -> Tensor:
        """A copy of ``x``."""
        ctx.input_ns = input_ns
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """``grad``, after ``input_ns``."""
        assert len(ctx.saved_tensors) == 1  # asking for them is what makes checkpointing compute the layer again
        torch.ops.dtprof_lab.backward_input(grad, ctx.input_ns)
        return grad, None


class _Weights(torch.autograd.Function):
    """A hundredth of the sum of the tensors' first elements; its backward takes the time of the weights' gradients."""

    @staticmethod
    def forward(ctx: Any, weight_ns: int, *tensors: Tensor) -> Tensor:
        ctx.weight_ns, ctx.like = weight_ns, [(t.shape, t.dtype) for t in tensors]
        return torch.stack([t.flatten()[0] for t in tensors]).sum() * _STEP

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        began = time.perf_counter_ns()
        grads = [torch.zeros(shape, dtype=dtype, device=grad.device) for shape, dtype in ctx.like]
        for made in grads:
            made.view(-1)[0] = grad * _STEP
        torch.ops.dtprof_lab.backward_weight(grad, left(ctx.weight_ns, began, grad.device))
        return (None, *grads)


class EmulatedLayer(nn.Module):
    """One layer on x of shape (batch, width): x plus a number that its parameters give."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer
        scale = 1 / len(layer.tensors)
        self.tensors = nn.ParameterList(nn.Parameter(torch.randn(n) * scale) for n in layer.tensors)

    def forward(self, x: Tensor) -> Tensor:
        """Take the layer's time; x of shape (batch, width)."""
        began = time.perf_counter_ns()
        added: Tensor = _Weights.apply(self.layer.weight_ns, *self.tensors)
        torch.ops.dtprof_lab.forward(x.detach(), left(self.layer.forward_ns, began, x.device))
        through: Tensor = Through.apply(x, self.layer.input_ns)
        return through + added


class Emulated(nn.Module):
    """The layers of an emulation, with the methods of ``common.model.GPT``: embed, blocks, project, loss."""

    def __init__(self, emulated: Emulation, vocabulary: int) -> None:
        super().__init__()
        self.width, self.vocabulary = emulated.width, vocabulary
        self.blocks = nn.ModuleList(EmulatedLayer(layer) for layer in emulated.layers)

    def embed(self, inputs: Tensor) -> Tensor:
        """Tokens (batch, sequence) to (batch, width): their mean, of 1, everywhere. Takes no time."""
        mean = inputs.float().mean(1, keepdim=True) / self.vocabulary
        return mean.repeat(1, self.width).requires_grad_(torch.is_grad_enabled())

    def project(self, x: Tensor) -> Tensor:
        """(batch, width) to (batch,), the model's guess. Takes no time."""
        return x.mean(1)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the guess (batch,) against the mean of the targets (batch, sequence), of 1."""
        wanted = targets.float().mean(1) / self.vocabulary
        return (output.float() - wanted).square().mean()

    def forward(self, tokens: Tensor) -> Tensor:
        """Loss of tokens (batch, sequence + 1)."""
        x = self.embed(tokens[:, :-1])
        for number, block in enumerate(self.blocks):
            with dtprof.annotate("block", layer=f"blocks.{number}"):
                x = block(x)
        return self.loss(self.project(x), tokens[:, 1:])


def total_bytes(emulated: Emulation) -> int:
    """Bytes of all parameters."""
    return 4 * sum(n for layer in emulated.layers for n in layer.tensors)

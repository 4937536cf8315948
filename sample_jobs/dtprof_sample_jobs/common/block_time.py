"""Emulated compute in a real model: every block takes a stated time beside its own small one.

Values, gradients and messages are those of the model. The operators are those of emulated layers (``common.delay``), which a
trace shows as computing, and which leave the core to the other ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from dtprof.errors import InputError
from dtprof_sample_jobs.common.options import number

LONGEST_MS = 3_600_000


def add_block_ms(parser: argparse.ArgumentParser, what: str = "each block") -> None:
    """The option ``--block-ms``."""
    parser.add_argument(
        "--block-ms", type=number, default=0.0, metavar="MS",
        help=f"{what} takes MS more in forward and twice that in backward, divided among the ranks that share it (0)",
    )  # fmt: skip


def check_block_ms(job: str, args: argparse.Namespace) -> None:
    """InputError for a time that is none, and for --emulate, whose layers cannot be divided."""
    if not 0 <= args.block_ms <= LONGEST_MS:
        raise InputError(f"--block-ms {args.block_ms} is no time in ms", f"give 0 to {LONGEST_MS}")
    if args.emulate:
        raise InputError(f"{job} has no emulated layers", "leave --emulate out and give --block-ms, the time of a block")


def take(blocks: Iterable[nn.Module], forward_ns: int) -> None:
    """Have every block take so much in forward, and twice as much in backward, ns; 0 changes nothing."""
    if forward_ns:
        for block in blocks:
            block.register_forward_pre_hook(_before(forward_ns))
            block.register_forward_hook(_after(2 * forward_ns))


def _before(ns: int) -> Any:
    def hook(_block: nn.Module, inputs: tuple[Any, ...]) -> None:
        torch.ops.dtprof_lab.forward(inputs[0].detach(), ns)

    return hook


def _after(ns: int) -> Any:
    def in_backward(grad: Tensor) -> None:
        torch.ops.dtprof_lab.backward_input(grad, ns)

    def hook(_block: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(in_backward)

    return hook

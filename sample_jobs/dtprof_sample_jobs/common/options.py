"""Options that every job has, and the checks that come before any process starts.

A job's module has ``parser()`` and, where there is more to check than ``check_common`` does, ``check(args, ranks)``, which
raises InputError. ``dtprof job`` calls both before it starts a process; ``read_options`` does so in a rank that torchrun
started.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from dtprof.errors import InputError, MissingExtra
from dtprof.session.core import parse_capture
from dtprof_sample_jobs.common import offload, recompute
from dtprof_sample_jobs.common.data import windows_per_rank
from dtprof_sample_jobs.common.emulate import Emulation, emulation
from dtprof_sample_jobs.common.faults import COMMON, KINDS, check_faults, fault_option
from dtprof_sample_jobs.common.model import ATTENTION
from dtprof_sample_jobs.common.update import OPTIMIZERS

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
LR_SCALINGS = ("none", "linear", "sqrt")


class JobParser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, of rank 0 alone, and exit code 3."""

    def error(self, message: str) -> NoReturn:
        """End the process."""
        if os.environ.get("RANK", "0") == "0":
            print(f"{self.prog}: error: {message}", file=sys.stderr)
        sys.exit(3)


def common_parser(name: str, doc: str | None, faults: Sequence[str] = COMMON) -> argparse.ArgumentParser:
    """A parser with the common options; the job adds its own. The first paragraph of ``doc`` describes it.

    ``faults`` are the kinds (see ``common.faults.KINDS``) that the job has.
    """
    made = JobParser(prog=f"dtprof job {name}", description=(doc or "").split("\n\n")[0], allow_abbrev=False)
    add = made.add_argument
    add("--steps", type=positive, default=40, help="steps to train (40)")
    add("--layers", type=positive, default=6, help="transformer blocks (6)")
    add("--dim", type=positive, default=192, help="width of the model (192)")
    add("--heads", type=positive, default=4, help="attention heads (4)")
    add("--seq", type=positive, default=64, help="sequence length (64)")
    add("--batch", type=positive, default=4, help="sequences per rank and micro-batch (4)")
    add("--vocabulary", type=positive, default=1024, help="tokens in the vocabulary (1024)")
    add("--data", choices=("synthetic", "corpus"), default="synthetic", help="random tokens, or the bytes of a small text")
    add("--emulate", type=emulated, metavar="FILE", help="layers that sleep, by a .toml file or uniform, small, head")
    add(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="fp32, tf32 (GPUs), bf16 (autocast), fp16 (with loss scaling) or fp8 (GPUs, torchao)",
    )
    offload.add_options(made)
    add("--checkpointing", choices=recompute.MODES, default="none", help="activations computed again in backward (none)")
    add("--attention", choices=ATTENTION, default="sdpa", help="torch's fused attention, or written out (sdpa)")
    add("--optimizer", choices=tuple(OPTIMIZERS), help="adamw or sgd (adamw; sgd with --emulate)")
    add("--lr", type=number, metavar="RATE", help="learning rate (3e-4 for adamw, 0.1 for sgd)")
    add("--lr-scaling", choices=LR_SCALINGS, default="none", help="scale the rate by the step's batch, or its root (none)")
    add("--base-batch", type=positive, metavar="N", help="sequences per step for which the rate is meant, with --lr-scaling")
    add("--warm-up", type=int, default=0, metavar="N", help="steps over which the rate rises to its full height (0)")
    add("--clip", type=number, metavar="NORM", help="clip the gradients to this norm")
    add("--seed", type=seed, default=0, help="seed of model and data (0)")
    forms = ", ".join(KINDS[kind].form(kind) for kind in faults) or "nothing: this job has no faults"
    add("--inject", type=fault_option(faults), action="append", default=[], metavar="FAULT", help=f"plant {forms}")
    add("--out", metavar="RUN", help=f"folder of the run (runs/{name}; with dtprof job runs/{name}-<time>)")
    add("--capture", default="5:15", metavar="A:B", help="trace steps A to B-1 (5:15), or none")
    add("--no-dtprof", action="store_true", help="train without any measurement")
    add("--losses", metavar="FILE", help="write the losses, bit for bit, to FILE.rank0, FILE.rank1, …")
    return made


def positive(text: str) -> int:
    """An argparse type: a whole number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def number(text: str) -> float:
    """An argparse type: a finite number."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return found


def seed(text: str) -> int:
    """An argparse type: a whole number of 32 bits."""
    if not text.isdecimal() or int(text) >= 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; give 0 to {(1 << 32) - 1}")
    return int(text)


def emulated(text: str) -> Emulation:
    """An argparse type: an emulation file."""
    try:
        return emulation(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def check_common(args: argparse.Namespace, ranks: int, stages: int = 1, data_ranks: int | None = None) -> None:
    """InputError where common options cannot go together, or with so many ranks, pipeline stages, ranks with data of their own.

    All ranks have data of their own where ``data_ranks`` is not given.
    """
    check_faults(args.inject, ranks, stages)
    check_folder("--out", args.out)
    if args.capture != "none":
        parse_capture(args.capture)
    if args.losses is not None and not os.path.isdir(os.path.dirname(args.losses) or "."):
        raise InputError(f"--losses {args.losses}: its folder is not there", "make it first")
    if args.lr is not None and args.lr <= 0:
        raise InputError(f"--lr {args.lr} is no learning rate", "give more than 0")
    if args.dim % args.heads:
        raise InputError(f"--dim {args.dim} is no multiple of --heads {args.heads}", "every head has the same width")
    if args.clip is not None and not args.clip > 0:
        raise InputError(f"--clip {args.clip} is no norm", "give more than 0")
    if (args.lr_scaling != "none") != (args.base_batch is not None):
        raise InputError("--lr-scaling and --base-batch need each other", "give both, or none")
    if args.warm_up < 0:
        raise InputError(f"--warm-up {args.warm_up} is no number of steps", "give 0 or more")
    check_precision(args)
    offload.check_offload(args)
    if args.precision == "tf32" and not torch.cuda.is_available():
        raise InputError("--precision tf32 needs a CUDA device", "use fp32 or bf16 here")
    if args.data != "corpus" and any(f.kind == "epoch_not_set" for f in args.inject):
        raise InputError("--inject epoch_not_set needs data with epochs", "add --data corpus")
    if args.data == "corpus" and args.vocabulary < 256:
        raise InputError(f"--vocabulary {args.vocabulary} is too small for the bytes of a text", "give 256 or more")
    if args.data == "corpus" and (least := windows_per_rank(args.seq, data_ranks or ranks)) < args.batch:
        raise InputError(
            f"the corpus has {least} sequences of {args.seq} tokens for each rank, not --batch {args.batch}",
            "give a smaller --batch or --seq",
        )


REFUSABLE: dict[str, Callable[[argparse.Namespace], bool]] = {
    "fp16": lambda args: args.precision == "fp16",
    "fp8": lambda args: args.precision == "fp8",
    "--warm-up": lambda args: args.warm_up > 0,
    "--offload-activations": lambda args: args.offload_activations is not None,
    "--offload-states": lambda args: args.offload_states is not None,
    "--offload-parameters": lambda args: args.offload_parameters is not None,
}


def refuse(args: argparse.Namespace, job: str, **why: str) -> None:
    """InputError for common options that a job cannot have: ``fp16="…"``, ``offload_states="…"`` say why not."""
    for option, asked in REFUSABLE.items():
        reason = why.get(option.removeprefix("--").replace("-", "_"))
        if reason is not None and asked(args):
            raise InputError(f"{option} cannot be had in {job}: {reason}", "leave it out")


def check_precision(args: argparse.Namespace) -> None:
    """InputError where the precision, or a fault of it, cannot be had here; MissingExtra for torchao."""
    for kind in ("clip_before_unscale", "fp16_overflow"):
        if any(f.kind == kind for f in args.inject) and args.precision != "fp16":
            raise InputError(f"--inject {kind} needs a scaled loss", "add --precision fp16")
    if args.precision == "fp8" and not torch.cuda.is_available():
        raise InputError("--precision fp8 needs a CUDA device of compute capability 8.9 or more", "use bf16 here")
    if args.precision == "fp8" and importlib.util.find_spec("torchao") is None:
        raise MissingExtra("--precision fp8 needs torchao", "pip install torchao")


def check_folder(option: str, folder: str | None) -> None:
    """InputError where a folder is given that is not there and cannot be made, or cannot be written to."""
    if folder is None:
        return
    if not folder:
        raise InputError(f"{option} names no folder", "give one, or leave it out")
    nearest = os.path.abspath(folder)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK):
        raise InputError(f"{option} {folder!r} is no folder to write to", f"{nearest} is in the way; name another")


def read_options(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    check: Callable[[argparse.Namespace, int], None] = check_common,
) -> argparse.Namespace:
    """Parse and check the options of a rank; one line and exit code 3 where they make no sense."""
    args = parser.parse_args(argv)
    try:
        check(args, int(os.environ.get("WORLD_SIZE", "1")))
    except InputError as error:
        parser.error(str(error))
    return args

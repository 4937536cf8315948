"""A user's own PyTorch module: its memory on one rank, measured without a GPU on tensors that have no contents."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtprof.errors import InputError, MissingExtra
from dtprof.plan.memory import buffers
from dtprof.plan.memory.breakdown import Memory
from dtprof.plan.memory.states import element_bytes
from dtprof.plan.spec import Layout

LIMIT_S = 300.0
_WORDS: tuple[str, ...] = ("-W", "ignore", "-m", "dtprof.plan.memory.measuring")
# the trackers' categories, by the part of Memory that they belong to
_PARTS = {
    "parameters": ("Parameter", "Buffer", "Sharded Param"),
    "gradients": ("Gradient", "Sharded Grad"),
    "optimizer": ("Optstate", "OptState"),
    "activations": ("Activation",),
    "transient": ("Temp", "Inputs", "Other"),
    "communication": ("Unsharded Param", "Unsharded Grad", "All Gather", "Reduce Scatter"),
}


@dataclass(frozen=True)
class Measured:
    """``memory`` at the peak; ``parameters`` of the module before sharding; ``blocks``: those sharded and recomputed as one."""

    memory: Memory
    parameters: int
    blocks: int


def measure(told: str, layout: Layout, folder: Path = Path(), limit_s: float = LIMIT_S) -> Measured:
    """The memory of the module that ``FILE.py:FUNCTION`` makes: ``FUNCTION(micro_batch)`` returns the module and a tuple of
    inputs.

    The module returns its loss, or something with ``loss``. ZeRO 0 (one rank's copy, as under DDP) and 3 (FSDP2 over the ranks
    that shard); recompute ``none`` and ``full`` (by block: the members of its module lists); Adam and SGD with momentum.
    InputError where the layout is another, or the module fails; MissingExtra where torch is not installed.
    """
    file, name = _place(told, folder)
    _can(layout)
    asked = {
        "file": str(file), "function": name, "micro_batch": layout.micro_batch, "ranks": layout.shard_ranks,
        "sharded": layout.zero == 3, "recompute": layout.recompute == "full", "optimizer": layout.optimizer,
        "low": "" if element_bytes(layout.precision) == 4 else "float16" if layout.precision == "fp16" else "bfloat16",
    }  # fmt: skip
    answer = _ask(asked, f"{file}: {name}({layout.micro_batch})", limit_s)
    peak: dict[str, int] = answer["peak"]
    parts = {part: sum(peak.get(category, 0) for category in names) for part, names in _PARTS.items()}
    memory = Memory(stage=0, context=buffers.context(layout), **parts)
    return Measured(memory, answer["parameters"], answer["blocks"])


def _place(told: str, folder: Path) -> tuple[Path, str]:
    file, colon, name = told.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise InputError(f"{told!r} is no function of a file", "write it as FILE.py:FUNCTION")
    path = folder / file
    if not path.is_file():
        raise InputError(f"{path}: no such file", f"give the file that has the function {name}")
    return path, name


def _can(layout: Layout) -> None:
    wrong: dict[str, str | bool] = {
        "zero": layout.zero not in (0, 3) and "a module is measured with zero 0 or 3",
        "recompute": layout.recompute == "selective" and "a module is measured with recompute none or full",
        "optimizer": layout.optimizer not in ("adam", "sgd") and "a module is measured with optimizer adam or sgd",
        "offload": bool(layout.offload) and "a module is measured without offloading",
    }
    for axis in ("tp", "pp", "cp", "ep"):
        wrong[axis] = getattr(layout, axis) > 1 and "a module is measured as it is, on data-parallel ranks"
    for key, why in wrong.items():
        if why:
            raise InputError(f"layout.{key} = {getattr(layout, key)}: {why}", "give the model's dimensions for other layouts")


def _ask(asked: dict[str, Any], where: str, limit_s: float) -> dict[str, Any]:
    words = [sys.executable, *_WORDS]
    try:
        done = subprocess.run(words, input=json.dumps(asked), capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{where} has not ended after {limit_s:.0f} s", "measure a smaller micro-batch") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        said = done.stderr.strip().rpartition("\n")[2] or f"its process ended with {done.returncode}"
        if "No module named 'torch'" in said:
            raise MissingExtra("measuring a module needs torch, which is not installed", "pip install torch") from None
        what = "the function has to return a module and a tuple of inputs, and these have to train on tensors without contents"
        raise InputError(f"{where}: {said}", what) from None
    return answer

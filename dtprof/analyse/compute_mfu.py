"""Model FLOPs utilisation, where the FLOPs of a token and the peak of the device are known.

``study.result("mfu")`` is an ``Mfu``. FLOPs per token are the knob ``flops_per_token`` where a job gives it, else PaLM's
formula over the knobs ``layers``, ``dim``, ``seq`` and ``vocabulary``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtprof.analyse.compute import gpu_of_all
from dtprof.analyse.host_steps import usable
from dtprof.analyse.training import data_ranks
from dtprof.catalogue.flops import Counted, palm, utilisation
from dtprof.catalogue.hardware import Gpu
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING


@dataclass(frozen=True)
class Mfu:
    """``share`` of the dense bf16 peak of ``gpu``, by ``tokens_per_s`` of all ranks and FLOPs ``per_token`` (``source`` says
    whose); None, and ``why``, where one of them is not known."""

    share: float | None = None
    gpu: Gpu | None = None
    tokens_per_s: float = 0.0
    per_token: float = 0.0
    source: str = ""
    ranks: int = 0
    why: str = ""


def analyse(study: Lens) -> Mfu:
    """MFU over the training steps that nothing was traced in."""
    run = study.run
    gpu = gpu_of_all(run)
    peak = gpu.flops("bf16") if gpu is not None else None
    if gpu is None or peak is None:
        return Mfu(why="the run has no device of the catalogue, or several kinds")
    per_token, source = flops_per_token(run.manifest.knobs)
    if per_token is None:
        return Mfu(why="the job does not say its FLOPs: knobs flops_per_token, or layers, dim, seq and vocabulary")
    rate = _tokens_per_s(run)
    ranks = run.world_size or len(run.ranks)
    if rate is None or not ranks:
        return Mfu(why="the job does not say how many tokens a step has (dtprof.step(tokens=…)), or which ranks share them")
    return Mfu(utilisation(per_token, rate, ranks, peak), gpu, rate, per_token, source, ranks)


def flops_per_token(knobs: Mapping[str, Any]) -> tuple[float | None, str]:
    """Model FLOPs of a token, forward and backward, and where they come from."""
    told = knobs.get("flops_per_token")
    if isinstance(told, int | float) and not isinstance(told, bool) and told > 0:
        return float(told), "the knob flops_per_token"
    sizes = [s for name in ("layers", "dim", "seq", "vocabulary") if isinstance(s := knobs.get(name), int) and s > 0]
    # of emulated layers, and of experts, these knobs do not say what a token is multiplied by
    if knobs.get("emulate") or knobs.get("experts") or len(sizes) < 4:
        return None, ""
    layers, dim, seq, vocabulary = sizes
    weights = 12.0 * layers * dim**2 + dim * vocabulary
    return palm(Counted(weights, layers, dim, seq, vocabulary)), "PaLM's formula over layers, dim, seq and vocabulary"


def _tokens_per_s(run: Run) -> float | None:
    """Tokens of all ranks per second: the usual rank's, by the number of ranks with data of their own."""
    shares, lengths, tokens = data_ranks(run), list[int](), list[int]()
    for part in run.parts:
        steps = usable(run, part.ordinal)
        table = run.table("steps", part.ordinal)
        lengths += steps.values()
        tokens += [
            t for s, t in zip(table["step"].tolist(), table["tokens"].tolist(), strict=True) if s in steps and t != MISSING
        ]
    if shares is None or not lengths or not tokens:
        return None
    return float(np.median(tokens)) * shares / (float(np.mean(lengths)) / 1e9)

"""Which edits the models of a run follow, so that a page offers those; whether a prediction stands is for ``what_if``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dtprof.edits import KEYS, Edit, parse_edit
from dtprof.model.ddp.accumulated import KEY as ACCUMULATION
from dtprof.model.ddp.accumulated import predict_accumulation
from dtprof.model.ddp.observe import Seen, observe
from dtprof.model.fsdp.marks import has_fsdp
from dtprof.model.fsdp.whatif import KEYS as FSDP_KEYS
from dtprof.model.fsdp.whatif import on_device
from dtprof.model.moe.whatif import KEYS as MOE_KEYS
from dtprof.model.moe.whatif import has_experts
from dtprof.model.on_device import knows
from dtprof.model.pipeline.observe import observe as observe_pipeline
from dtprof.model.pipeline.whatif import KEYS as PIPELINE_KEYS
from dtprof.model.whatif import DDP_KEYS
from dtprof.run import Run

# edits of a step graph that a job without device work may follow
_ON_HOSTS = ("net.bandwidth_scale", "ideal.rank", "ideal.communication", "ideal.loader")
_OF_RANKS = ("ideal.rank", "ideal.loader")


@dataclass(frozen=True)
class Offer:
    """The ``keys`` that one model follows, in the order of ``KEYS``; ``asked`` is an edit whose outcome tells its record."""

    keys: tuple[str, ...]
    asked: Edit


def offers(run: Run) -> list[Offer]:
    """The models of a run, those of its own kind of training first."""
    if on_device(run):
        graph = [key for key in KEYS if knows([Edit(key, True)])]
        own = [key for key in FSDP_KEYS if key.startswith("fsdp.") and key != "fsdp.wrap"] if has_fsdp(run) else []
        return [*_offer(own, "fsdp.reshard_after_forward=true"), *_offer(graph, "net.bandwidth_scale=1")]
    found = [] if isinstance(observe_pipeline(run), str) else _offer(PIPELINE_KEYS, "pipeline.balance=even")
    found += _offer(MOE_KEYS, "moe.balance=even") if has_experts(run) else []
    if predict_accumulation(run, [parse_edit(f"{ACCUMULATION}=2")]) is not None:
        return [*found, *_offer([ACCUMULATION], f"{ACCUMULATION}=2")]
    seen = observe(run)
    if isinstance(seen, Seen):
        return [*found, *_offer(DDP_KEYS if seen.backend == "gloo" else _ON_HOSTS, "net.bandwidth_scale=1")]
    if has_fsdp(run):
        return [*found, *_offer(FSDP_KEYS, "net.bandwidth_scale=1"), *_offer(_OF_RANKS, "ideal.loader=true")]
    return [*found, *_offer(_ON_HOSTS, "net.bandwidth_scale=1")]


def _offer(keys: Iterable[str], asked: str) -> list[Offer]:
    mine = frozenset(keys)
    return [Offer(tuple(key for key in KEYS if key in mine), parse_edit(asked))] if mine else []

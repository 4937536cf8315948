"""What would make an impossible search possible: the nearest specification that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dtprof.numbers import count, counted, size
from dtprof.plan.memory import fits, host_bytes, peak_bytes
from dtprof.plan.search.space import Space
from dtprof.plan.search.wanted import Wanted
from dtprof.plan.search.words import brief
from dtprof.plan.spec import Layout, Offload, divisors, nearest

_OFFLOADS: tuple[tuple[Offload, ...], ...] = (
    ("optimizer",), ("optimizer", "activations"), ("parameters", "activations"),
)  # fmt: skip
_DOUBLINGS, _HALVINGS = 10, 6


def mend(wanted: Wanted) -> tuple[str, ...]:
    """One sentence for each thing whose nearest change alone would do, cheapest first; empty where none of them would."""
    if not _any_grid(wanted):
        return tuple(_constraints(wanted))
    return tuple(filter(None, (_freed(wanted), _larger(wanted), _offloaded(wanted), _shorter(wanted))))


def _any_grid(wanted: Wanted) -> bool:
    return any(next(iter(space.layouts(grid)), None) for space in _spaces(wanted) for grid in space.grids())


def _spaces(wanted: Wanted) -> list[Space]:
    return [
        Space(wanted, gpus, batch, lambda *_: None)
        for gpus in wanted.gpus or (wanted.cluster.gpus,)
        for batch in wanted.batches
    ]


def first_fit(wanted: Wanted, offload: tuple[Offload, ...] = ()) -> Layout | None:
    """A layout that fits, however slow."""
    for space in _spaces(wanted):
        for grid in reversed(space.grids()):
            for layout in space.layouts(grid, offload):
                memory = peak_bytes(wanted.model, wanted.cluster, layout, wanted.software)
                if fits(memory, wanted.cluster) == "fits":
                    return layout
    return None


def _offloaded(wanted: Wanted) -> str:
    for offload in _OFFLOADS:
        if set(offload) <= set(wanted.offload):
            continue
        found = first_fit(wanted, offload)
        if found is not None:
            host = peak_bytes(wanted.model, wanted.cluster, found, wanted.software).host
            of = f"{size(host)} of the host's memory, which has {size(host_bytes(wanted.cluster))} for it"
            return f"it fits with offload = {list(offload)}: {brief(found)}; each GPU needs {of}"
    return ""


def _larger(wanted: Wanted) -> str:
    cluster = wanted.cluster
    node = cluster.gpus_per_node
    base = max(wanted.gpus or (cluster.gpus,))
    for doubled in range(1, _DOUBLINGS):
        gpus = base << doubled
        if gpus > node and gpus % node:
            continue
        batch = -(-wanted.global_batch // gpus) * gpus if wanted.global_batch else 0
        for held in dict.fromkeys((wanted.global_batch, batch)):
            found = first_fit(replace(wanted, gpus=(gpus,), dp=(), global_batch=held))
            if found is not None:
                more = "" if held == wanted.global_batch else f" and a global batch of {count(held)}"
                return f"it fits on {counted(gpus, 'GPU')}{more}: {brief(found)}"
    return ""


def _shorter(wanted: Wanted) -> str:
    for halved in range(1, _HALVINGS):
        seq = wanted.seq >> halved
        found = first_fit(replace(wanted, seq=seq)) if seq else None
        if found is not None:
            return f"it fits with sequences of {count(seq)} tokens: {brief(found)}"
    return ""


def _freed(wanted: Wanted) -> str:
    """With what the specification holds fixed left open."""
    free = replace(wanted, dp=(), tp=(), pp=(), vpp=(), cp=(), ep=(), micro_batch=(), zero=(), shard=(), recompute=())
    found = first_fit(free) if free != wanted else None
    return f"it fits with the layout left open: {brief(found)}" if found is not None else ""


def _constraints(wanted: Wanted) -> Iterator[str]:
    """The nearest value of each number that keeps the model from being parted."""
    model, gpus = wanted.model, (wanted.gpus or (wanted.cluster.gpus,))[0]
    heads = [one for one in divisors(model.heads) if gpus % one == 0 and model.ffn % one == 0]
    for tp in wanted.tp:
        if tp not in heads:
            yield f"tp = {nearest(tp, heads)} would divide {model.heads} heads, {model.ffn} and {counted(gpus, 'GPU')}"
    for pp in wanted.pp:
        fine = [one for one in divisors(gpus) if one <= model.layers]
        if pp not in fine:
            yield f"pp = {nearest(pp, fine)} would divide {counted(gpus, 'GPU')} and is at most {model.layers} layers"
    if model.moe is not None and gpus % wanted.etp:
        yield f"etp = {nearest(wanted.etp, divisors(gpus))} would divide {counted(gpus, 'GPU')}"
    if wanted.global_batch:
        copies = _copies(wanted, gpus)
        if copies and all(wanted.global_batch % one for one in copies):
            multiples = [max(round(wanted.global_batch / one), 1) * one for one in copies]
            yield f"global_batch = {count(nearest(wanted.global_batch, multiples))} would be shared evenly by the ranks"
    yield from _broken(wanted)


def _broken(wanted: Wanted) -> list[str]:
    """What was fixed to values that nothing goes with, where another value would do."""
    told: dict[str, str] = {}

    def skip(key: str, value: object, why: str) -> None:
        if why.endswith("would do"):
            told.setdefault(key, f"{key} = {value} {why}")

    for gpus in wanted.gpus or (wanted.cluster.gpus,):
        space = Space(wanted, gpus, wanted.batches[0], skip)
        for grid in space.grids():
            next(iter(space.layouts(grid)), None)
    return list(told.values())


def _copies(wanted: Wanted, gpus: int) -> list[int]:
    """Sizes of dp that the rest allows: with a batch that everything divides."""
    free = replace(wanted, global_batch=gpus)
    return sorted({dp for *_, dp, _ in Space(free, gpus, gpus, lambda *_: None).grids()})

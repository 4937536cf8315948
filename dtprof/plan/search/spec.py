"""SPEC.toml of a search: model, cluster, software, what of the layout is fixed, and what may be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from dtprof.errors import InputError
from dtprof.plan.reading import cluster_of, model_of, read_toml
from dtprof.plan.search.wanted import GradientType, Wanted
from dtprof.plan.software import DEFAULT, software
from dtprof.plan.spec import AttentionKind, Cluster, Layout, Offload, Optimizer, Precision, Recompute, ScheduleName

TABLES = ("model", "cluster", "software", "layout", "search")
_NUMBERS = ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "zero", "shard")
_WORDS: dict[str, tuple[str, ...]] = {
    "recompute": get_args(Recompute), "schedule": get_args(ScheduleName), "precision": get_args(Precision),
    "offload": get_args(Offload),
}  # fmt: skip
_ONE: dict[str, tuple[str, ...]] = {
    "optimizer": get_args(Optimizer), "gradient_dtype": get_args(GradientType), "attention": get_args(AttentionKind),
}  # fmt: skip
_SEARCH = ("gpus", "critical_batch", "price_per_gpu_hour", "keep", *_NUMBERS, *_WORDS)


@dataclass(frozen=True)
class Spec:
    """What a SPEC.toml says: a search, or (``module``) a user's own module to be measured; ``layout``: the table [layout]."""

    path: Path
    wanted: Wanted | None
    module: str
    cluster: Cluster
    layout: dict[str, Any]


def read(path: Path) -> Spec:
    """The search of a file; InputError names the table, the key and what would do."""
    tables = read_toml(path)
    for name in tables:
        if name not in TABLES:
            raise InputError(f"{path}: [{name}] is not known", f"known: {', '.join(TABLES)}")
    for name, remedy in (
        ("model", 'model = "Llama 3 8B" or [model] with its values'),
        ("cluster", '[cluster] with gpu = "H100 SXM" and gpus = 8'),
    ):
        if name not in tables:
            raise InputError(f"{path}: {name} is missing", f"add {remedy}")
    cluster = cluster_of(tables["cluster"], str(path), path.parent)
    layout = _table(tables.get("layout", {}), path, "layout")
    module = tables["model"].get("module", "") if isinstance(tables["model"], dict) else ""
    if module:
        return Spec(path, None, str(module), cluster, layout)
    chosen = _table(tables.get("search", {}), path, "search")
    _no_others(layout, tuple(field.name for field in fields(Layout)), path, "layout")
    _no_others(chosen, _SEARCH, path, "search")
    with _named(path):
        model = model_of(tables["model"], str(path), path.parent)
    known = tables.get("software", DEFAULT)
    if not isinstance(known, str):
        raise InputError(f"{path}: software = {known!r}", f'give a name, as software = "{DEFAULT}"')
    with _named(path):
        generation = software(known)
    critical = _whole(chosen.get("critical_batch", 0), path, "search.critical_batch", 0)
    wanted = Wanted(
        model,
        cluster,
        generation,
        _needed(layout, "seq", path),
        0 if critical and "global_batch" not in layout else _needed(layout, "global_batch", path),
        critical,
        gpus=_gpus(chosen.get("gpus"), cluster, path),
        price=_price(chosen.get("price_per_gpu_hour", 0.0), path),
        keep=_whole(chosen.get("keep", 10), path, "search.keep"),
        etp=_whole(layout.get("etp", 1), path, "layout.etp"),
        **_choices(layout, chosen, path),
    )
    if wanted.seq > model.max_positions > 0 and model.positions == "learned":
        raise InputError(f"{path}: layout.seq = {wanted.seq}: {model.name} has {model.max_positions} positions",
                         f"seq = {model.max_positions} would do")  # fmt: skip
    return Spec(path, wanted, "", cluster, layout)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What is wrong with a name of the file is said with the file."""
    try:
        yield
    except InputError as error:
        known = error.message.startswith(str(path))
        raise error if known else InputError(f"{path}: {error.message}", error.hint) from error


def _choices(layout: dict[str, Any], chosen: dict[str, Any], path: Path) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key in (*_NUMBERS, *_WORDS):
        if key in layout and key in chosen:
            raise InputError(f"{path}: {key} is in [layout] and in [search]", "fix it in one or choose from it in the other")
        place = "layout" if key in layout else "search"
        values = {**layout, **chosen}.get(key)
        if values is None:
            continue
        out[key] = _values(key, values, path, f"{place}.{key}")
    for key, words in _ONE.items():
        if key in layout:
            if layout[key] not in words:
                raise InputError(f"{path}: layout.{key} = {layout[key]!r}", f"one of {', '.join(words)}")
            out[key] = layout[key]
    if "sequence_parallel" in layout:
        out["sequence_parallel"] = bool(layout["sequence_parallel"])
    return out


def _values(key: str, values: Any, path: Path, place: str) -> tuple[Any, ...]:
    """The values of one axis, one or a list; InputError for those that the axis does not have."""
    many = list(values) if isinstance(values, list | tuple) else [values]
    if not many:
        raise InputError(f"{path}: {place} = [] leaves nothing to choose", "give values, or leave the key out")
    for one in many:
        if key in _WORDS:
            if one not in _WORDS[key]:
                raise InputError(f"{path}: {place} = {one!r}", f"one or more of {', '.join(_WORDS[key])}")
            continue
        _whole(one, path, place, 0 if key in ("zero", "shard") else 1)
        if key == "zero" and one > 3:
            raise InputError(f"{path}: {place} = {one}", "ZeRO has stages 0 to 3")
    return tuple(many)


def _gpus(values: object, cluster: Cluster, path: Path) -> tuple[int, ...]:
    if values is None:
        return ()
    many = values if isinstance(values, list) else [values]
    numbers = tuple(_whole(one, path, "search.gpus") for one in many)
    for one in numbers:
        if one > cluster.gpus_per_node and (one % cluster.gpus_per_node or not cluster.inter_gb_s):
            what = f"{path}: search.gpus = {one} are no full nodes of {cluster.gpus_per_node}, or cluster.inter is missing"
            raise InputError(what, 'give multiples of a node, and inter = "8x400 Gbit/s" in [cluster]')
    return numbers


def _needed(layout: dict[str, Any], key: str, path: Path) -> int:
    if key not in layout:
        more = ", or critical_batch to [search]" if key == "global_batch" else ""
        raise InputError(f"{path}: layout.{key} is missing", f"add {key} = … to [layout]{more}")
    return _whole(layout[key], path, f"layout.{key}")


def _whole(value: object, path: Path, name: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{path}: {name} = {value!r}", f"give a whole number from {least}")
    return value


def _price(value: object, path: Path) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise InputError(f"{path}: search.price_per_gpu_hour = {value!r}", "give a number from 0")
    return float(value)


def _table(value: object, path: Path, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} is {value!r}", f"write a table [{name}]")
    return dict(value)


def _no_others(values: dict[str, Any], known: tuple[str, ...], path: Path, name: str) -> None:
    for key in values:
        if key not in known:
            raise InputError(f"{path}: {name}.{key} is not known", f"known: {', '.join(known)}")

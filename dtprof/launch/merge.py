"""Joining what the nodes of one run wrote each to its own disk: part folders into one run folder, checked first."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dtprof.errors import InputError
from dtprof.run import Part
from dtprof.session.folder import describe

_PART = re.compile(r"^part\d{5,}$")
_ONCE = ("manifest.json", "calibration.jsonl")
_APART_NS = 60_000_000_000


@dataclass
class Merged:
    """What was joined: ``ranks`` present and ``missing`` (None where no part tells the world size), ``hosts``, and ``notes``
    for what is not as it should be."""

    path: Path
    parts: int = 0
    ranks: list[int] = field(default_factory=list)
    missing: list[int] | None = None
    hosts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**self.__dict__, "path": str(self.path)}


@dataclass(frozen=True)
class _Found:
    folder: Path
    part: Part | None


def merge(sources: Sequence[Path], out: Path) -> Merged:
    """Copy the parts of all ``sources`` (run folders or single part folders) into the new run folder ``out``.

    Raises InputError where a source holds no part, where they belong to different runs, where two processes claim to be
    the same, or where ``out`` holds something already. ``out`` appears as a whole or not at all.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already", "give -o a folder that does not exist yet")
    merged = Merged(out)
    found = _distinct([item for source in sources for item in _parts(source)], merged)
    _check_keys(found)
    _describe(found, merged)
    try:
        _copy(found, sources, merged)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror or error})", "give -o another place") from error
    return merged


def _parts(source: Path) -> list[_Found]:
    if not source.is_dir():
        raise InputError(f"{source}: no such folder", "give the run folder that each node wrote")
    if _PART.match(source.resolve().name):
        return [_Found(source, describe(source))]
    folders = [path for path in sorted(source.iterdir()) if _PART.match(path.name) and path.is_dir()]
    if not folders:
        raise InputError(f"{source}: holds no part folder", "give the run folder that each node wrote")
    return [_Found(folder, describe(folder)) for folder in folders]


def _distinct(found: list[_Found], merged: Merged) -> list[_Found]:
    """One of each process; a folder given twice is taken once, two processes of one name are refused."""
    kept: dict[Any, _Found] = {}
    for item in found:
        who = item.folder.name if item.part is None else (item.part.rank, item.part.attempt, item.part.window)
        other = kept.setdefault(who, item)
        if other is item:
            continue
        if not _same(other, item):
            what = who if isinstance(who, str) else f"rank {who[0]}, attempt {who[1]}"
            raise InputError(f"{other.folder} and {item.folder}: both are {what}, of different processes", "leave one out")
        merged.notes.append(f"{item.folder} is {other.folder} again, and was taken once")
    return list(kept.values())


def _same(one: _Found, other: _Found) -> bool:
    if one.part is None or other.part is None:
        return one.folder.resolve() == other.folder.resolve()
    left, right = one.part, other.part
    return (left.host, left.pid, left.extra.get("started_ns")) == (right.host, right.pid, right.extra.get("started_ns"))


def _check_keys(found: list[_Found]) -> None:
    """All of one run, by the key that its processes agreed on."""
    keys: dict[str, _Found] = {}
    for item in found:
        if item.part is not None:
            keys.setdefault(str(item.part.extra.get("run_key")), item)
    if len(keys) > 1:
        (one, first), (two, second), *_ = keys.items()
        raise InputError(
            f"{first.folder} belongs to the run {one}, {second.folder} to the run {two}", "merge the folders of one run only"
        )


def _describe(found: list[_Found], merged: Merged) -> None:
    parts = [item.part for item in found if item.part is not None]
    merged.parts = len(found)
    merged.ranks = sorted({part.rank for part in parts if part.rank is not None})
    merged.hosts = sorted({part.host for part in parts if part.host})
    sizes = [part.world_size for part in parts if part.world_size]
    if sizes:
        merged.missing = sorted(set(range(max(sizes))) - set(merged.ranks))
        if merged.missing:
            merged.notes.append(f"of {max(sizes)} ranks these are missing: {', '.join(map(str, merged.missing))}")
    merged.notes += [
        f"{i.folder / 'part.json'}: missing or unreadable, so its run is not known" for i in found if i.part is None
    ]
    merged.notes += [
        f"rank {part.rank} did not end its session: it was killed, or was running as its folder was copied"
        for part in parts
        if part.extra.get("ended_ns") is None
    ]
    merged.notes += _clocks(parts)


def _clocks(parts: list[Part]) -> list[str]:
    """Hosts that were never measured at the same time as the first: their clocks are far apart, or they are other runs."""
    spans: dict[str, tuple[int, int]] = {}
    for part in parts:
        begun, ended = part.extra.get("started_ns"), part.extra.get("ended_ns")
        if part.host and isinstance(begun, int):
            low, high = spans.get(part.host, (begun, begun))
            spans[part.host] = min(low, begun), max(high, ended if isinstance(ended, int) else begun)
    notes = []
    for host, (begun, ended) in list(spans.items())[1:]:
        first, (low, high) = next(iter(spans.items()))
        apart = max(begun - high, low - ended)
        if apart > _APART_NS:
            notes.append(
                f"the clocks of {first} and {host} are {apart // 1_000_000_000} s or more apart; set them by NTP or PTP"
            )
    return notes


def _copy(found: list[_Found], sources: Sequence[Path], merged: Merged) -> None:
    out = merged.path.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for item in found:
            shutil.copytree(item.folder, _free(temporary, item), ignore=shutil.ignore_patterns(".*"))
        for name in _ONCE:
            held = [source / name for source in sources if (source / name).is_file()]
            if held:
                shutil.copy2(held[0], temporary / name)
            elif name == "manifest.json":
                merged.notes.append("no source has a manifest.json: rank 0's folder is missing, or it was killed early")
        temporary.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _free(folder: Path, item: _Found) -> Path:
    """The part's own number, or the next that is free where two nodes have used the same."""
    number = int(item.folder.resolve().name.removeprefix("part"))
    while (folder / f"part{number:05d}").exists():
        number += 1
    return folder / f"part{number:05d}"

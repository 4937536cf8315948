"""Plugins by entry point. A broken plugin is listed with its error and never fatal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUPS = ("collectors", "readers", "analyses", "rules", "exporters", "commands")


@dataclass(frozen=True)
class Plugin:
    """One announced plugin: ``value`` is what it loads to, or None with ``error`` saying why not."""

    group: str
    name: str
    package: str
    version: str
    target: str
    value: Any = None
    error: str = ""


@cache
def announced(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of one group, by name, without loading them."""
    return tuple(sorted(entry_points(group=f"dtprof.{group}"), key=lambda e: e.name))


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """What foreign code returns, or None and what it raised: a broken plugin costs only what it would have given."""
    try:
        return call(), ""
    except Exception as broken:  # noqa: BLE001 - the one border to foreign code outside the training loop
        return None, f"{type(broken).__name__}: {broken}"


def load(entry: EntryPoint, group: str) -> Plugin:
    """Load one plugin; whatever it raises becomes its ``error``."""
    package = entry.dist.name if entry.dist else "?"
    version = entry.dist.version if entry.dist else "?"
    value, error = attempt(entry.load)
    return Plugin(group, entry.name, package, version, entry.value, value, error)


def loaded(group: str) -> list[Plugin]:
    """All plugins of one group, loaded."""
    return [load(entry, group) for entry in announced(group)]


def find(group: str, name: str) -> Plugin | None:
    """The plugin of that name, loaded, or None."""
    for entry in announced(group):
        if entry.name == name:
            return load(entry, group)
    return None

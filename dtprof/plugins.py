"""Plugins by entry point. A broken plugin is listed with its error and never fatal."""

from __future__ import annotations

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


def load(entry: EntryPoint, group: str) -> Plugin:
    """Load one plugin; whatever it raises becomes its ``error``."""
    package = entry.dist.name if entry.dist else "?"
    version = entry.dist.version if entry.dist else "?"
    value, error = None, ""
    try:
        value = entry.load()
    except Exception as broken:
        error = f"{type(broken).__name__}: {broken}"
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

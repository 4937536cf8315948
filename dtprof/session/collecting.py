"""The collectors of a session: made by entry point or as given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dtprof import plugins
from dtprof.protocols import Collector, Status
from dtprof.session import description
from dtprof.session.guard import Guard

Collecting = list[tuple[str, Collector, Status]]


def make(wanted: Sequence[str | Collector | type[Collector]] | None, guard: Guard, step: int) -> list[tuple[str, Collector]]:
    """Collectors by entry point, or those that were asked for; one that cannot be loaded is noted, never fatal."""
    made: list[tuple[str, Collector]] = []
    if wanted is None:
        wanted = [entry.name for entry in plugins.announced("collectors")]
    for item in wanted:
        name, factory = description.name_of(item), item
        if isinstance(item, str):
            plugin = plugins.find("collectors", item)
            problem = "not installed" if plugin is None else plugin.error
            if plugin is None or problem:
                guard.fail(name, "load", step, ImportError(problem))
                continue
            factory = plugin.value

        def add(name: str = name, factory: Any = factory) -> None:
            made.append((name, factory() if isinstance(factory, type) else factory))

        guard.call(name, "load", step, add)
    return made

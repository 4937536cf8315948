"""What a session says of itself: part.json, and on rank 0 manifest.json."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dtprof.protocols import Collector, Status
from dtprof.run import Manifest, Part
from dtprof.session.folder import PartFolder, to_plain
from dtprof.session.identity import Identity, device_name, process_group, versions
from dtprof.session.ports import of_this_machine


@dataclass(frozen=True)
class Layout:
    """What a job says of its parallelism: ``mesh``, ``coordinates`` and ``groups`` of the manifest."""

    mesh: dict[str, int] = field(default_factory=dict)
    coordinates: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)


def part_of(who: Identity, folder: PartFolder, extra: dict[str, Any]) -> Part:
    """The part of this process, with the machine's ports to the network."""
    return Part(
        ordinal=folder.ordinal, rank=who.rank, attempt=who.attempt, window=folder.window, world_size=who.world_size,
        host=who.host, pid=who.pid, device=device_name(), backend=who.backend, source=folder.path.name,
        rank_from=who.rank_from + (f"; {who.conflict}" if who.conflict else ""),
        extra={**extra, "network": list(of_this_machine())},
    )  # fmt: skip


def states_of(
    collectors: Sequence[tuple[str, Collector, Status]], failures: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """{name, state, facts, failure?, missing?} of every collector, and of those that could not be made."""
    states = [_state_of(name, status, failures) for name, _, status in collectors]
    made = {name for name, _, _ in collectors}
    return states + [{"name": f["name"], "state": "off", "failure": f} for f in failures if f["name"] not in made]


def _state_of(name: str, status: Status, failures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failure = next((f for f in failures if f["name"] == name), None)
    state: dict[str, Any] = {"name": name, "state": "off" if failure else "on", "facts": to_plain(status.facts)}
    if failure:
        state["failure"] = failure
    if status.missing:
        state["missing"] = list(status.missing)
    return state


def manifest_of(
    part: Part,
    job: str | None,
    layout: Layout,
    knobs: Mapping[str, Any],
    states: list[dict[str, Any]],
    own_cost: Mapping[str, Any] | None,
) -> Manifest:
    """The run as rank 0, which is ``part``, knows it."""
    dist = process_group()
    groups = []
    if dist is not None:
        groups.append({"name": "default_pg", "ranks": list(range(dist.get_world_size())), "backend": part.backend})
    groups += [{"backend": part.backend, **to_plain(group)} for group in layout.groups]
    cost = {k: float(own_cost[k]) for k in ("fraction", "low", "high")} if own_cost else None
    return Manifest(
        run_id=str(part.extra["run_key"]), job=job, command=list(sys.orig_argv), world_size=part.world_size,
        mesh=to_plain(layout.mesh), coordinates=to_plain(layout.coordinates), groups=groups, knobs=to_plain(knobs),
        hosts=[part.host or ""], devices=[part.device or ""], versions=versions(), collectors=states, own_cost=cost,
        parts=[part],
    )  # fmt: skip


def name_of(item: Any) -> str:
    """What a collector that was asked for (a name, a class, an object) is called."""
    if isinstance(item, str):
        return item
    return str(getattr(item, "name", None) or getattr(item, "__name__", None) or type(item).__name__)

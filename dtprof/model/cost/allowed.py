"""What the links of a group allow, from the best source there is: a measurement beside the run, or the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from dtprof.catalogue.hardware import gpu_of
from dtprof.errors import InputError
from dtprof.model.cost.between import line_between
from dtprof.model.cost.expected import expected
from dtprof.model.cost.table import from_calibration
from dtprof.run import Part, Run

CALIBRATION = "calibration.jsonl"
MEASURE = f"measure them with dtprof job collectives on the same hosts, and put its {CALIBRATION} into the run's folder"


@dataclass(frozen=True)
class Allowed:
    """``range_ns`` gives the shortest and the longest plausible ns of an operation of so many bytes; ``source`` in words."""

    range_ns: Callable[[int], tuple[float, float]]
    source: str


def calibration_of(run: Run) -> Path | None:
    """What ``dtprof job collectives`` measured on the network of the run: its file in the run's folder; None without one."""
    path = Path(run.path) / CALIBRATION if run.path else None
    return path if path is not None and path.is_file() else None


def allowed(run: Run, op: str, n: int, ranks: Collection[int]) -> Allowed | str:
    """What ``op`` over these ranks (a group of ``n``) may take; or why nobody knows, with what to measure."""
    if (path := calibration_of(run)) is not None:
        return _measured(path, op, n)
    parts = [p for p in run.parts if p.rank in ranks]
    names = {p.device for p in parts}
    if len(parts) < n or None in names:
        return f"which devices the group has is not recorded: {MEASURE}"
    if len(names) > 1:
        return f"its devices differ ({', '.join(sorted(map(str, names)))}): {MEASURE}"
    name = str(names.pop())
    if name.startswith("cpu"):
        return f"what connects ranks on CPUs is in no catalogue: {MEASURE}"
    gpu = gpu_of(name)
    if gpu is None:
        return f"the catalogue has no {name}: {MEASURE}"
    nodes = nodes_of(run, parts)
    if isinstance(nodes, str):
        return f"{nodes}: {MEASURE}"
    between = line_between(run, parts, gpu) if nodes > 1 else None
    if isinstance(between, str):
        return f"the group spans {nodes} hosts, and {between}: {MEASURE}"
    tried = expected(op, 1, n, nodes, gpu, between)
    if isinstance(tried, str):
        return f"{tried}: {MEASURE}"

    def range_ns(size: int) -> tuple[float, float]:
        found = expected(op, size, n, nodes, gpu, between)
        assert not isinstance(found, str)
        return found.low_ns, found.high_ns

    return Allowed(range_ns, tried.source)


def _measured(path: Path, op: str, n: int) -> Allowed | str:
    try:
        table = from_calibration(path, op, n)
    except InputError as error:
        return str(error)

    def range_ns(size: int) -> tuple[float, float]:
        typical = table.alone(size)
        return typical * (1 - table.spread), typical * (1 + table.spread)

    return Allowed(range_ns, table.source)


def nodes_of(run: Run, parts: list[Part]) -> int | str:
    """On how many hosts the processes run: by their names, else one where no two use the same device number."""
    hosts = {p.host for p in parts}
    if hosts and None not in hosts:
        return len(hosts)
    devices = []
    for part in parts:
        numbers = {int(d) for d in run.table("lanes", part.ordinal)["device"].tolist() if d >= 0}
        devices.append(min(numbers) if len(numbers) == 1 else -1)
    if -1 not in devices and len(set(devices)) == len(devices) > 1:
        return 1
    return "on which hosts its ranks ran is not recorded"

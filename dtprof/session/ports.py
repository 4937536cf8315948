"""What connects this machine with others, from /sys: interfaces and RDMA ports.

Source: Linux, Documentation/ABI/testing/sysfs-class-net and ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path("/")


def ports(root: Path = ROOT) -> list[dict[str, Any]]:
    """Interfaces that are up, without loopback, and active RDMA ports (InfiniBand, RoCE, EFA).

    name ("eth0"; "mlx5_0:1" of an RDMA port), kind ("ethernet", "infiniband"), mbit_s (Mb/s where it is stated, else None)
    and physical (False: bridges, virtual pairs, bonds; their stated speed is no link's).
    """
    out = []
    for folder in sorted((root / "sys/class/net").glob("*")):
        if folder.name != "lo" and text_of(folder / "operstate") == "up":
            speed = text_of(folder / "speed") or ""
            stated = int(speed) if speed.isdigit() and int(speed) else None
            physical = (folder / "device").exists()
            out.append({"name": folder.name, "kind": "ethernet", "mbit_s": stated, "physical": physical})
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = (text_of(port / "rate") or "").split()
        speed_of = round(float(rate[0]) * 1000) if rate and rate[0].replace(".", "", 1).isdigit() else None
        name = f"{port.parent.parent.name}:{port.name}"
        if "ACTIVE" in (text_of(port / "state") or ""):
            kind = (text_of(port / "link_layer") or "InfiniBand").lower()
            out.append({"name": name, "kind": kind, "mbit_s": speed_of, "physical": True})
    return out


@functools.cache
def of_this_machine() -> tuple[dict[str, Any], ...]:
    """``ports`` of this machine, looked for once per process; none where /sys cannot be read: a run is described anyway."""
    try:
        return tuple(ports())
    except (OSError, ValueError):
        return ()


def between_machines(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """GB/s of those of ``ports`` that serve GPUs: RDMA ports, else real interfaces; without those of unknown speed."""
    rdma = [one for one in found if ":" in str(one.get("name"))]
    return [one["mbit_s"] / 8000 for one in rdma or found if one.get("mbit_s") and one.get("physical", True)]


def text_of(path: Path) -> str | None:
    """The text of a file of /sys or /proc without blanks around it; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None

"""CPU limits: one cgroup per limited rank, in the first hierarchy that lets us (cgroups(7), version 1 or 2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dtprof.errors import InputError
from dtprof_sample_jobs.lab.keeper import cpu_cgroups

# short, so that a limited rank is slow all the time and not stopped for tens of ms
PERIOD_US = 10_000
_HINT = "leave cpu=… out, or start where cgroups can be written (root, a container with --privileged)"


def limit_cpus(name: str, shares: Mapping[int, float]) -> dict[int, Path]:
    """Make the cgroups of a lab: rank -> directory, for the ranks in ``shares`` (of one core)."""
    if not shares:
        return {}
    problems = []
    for version, own in cpu_cgroups():
        if version == 2 and "cpu" not in (own / "cgroup.subtree_control").read_text().split():
            problems.append(f"{own}: the cpu controller is not enabled for what is below")
            continue
        try:
            return {rank: _make(version, own, f"{name}-r{rank}", share) for rank, share in shares.items()}
        except OSError as error:
            problems.append(f"{error.filename or own}: {error.strerror}")
    raise InputError(f"cgroups cannot limit CPU time here ({'; '.join(problems) or 'none is mounted'})", _HINT)


def _make(version: int, own: Path, name: str, share: float) -> Path:
    group = own / name
    quota = max(round(PERIOD_US * share), 1000)
    group.mkdir(exist_ok=True)
    if version == 2:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    return group

"""A training command under Nsight Systems: the command line of ``nsys``, and whether it recorded our ranges.

One report for the whole command, named after the rank where the environment tells one (``%q{RANK}``), else after the host:
torchrun's processes are all in it. CPU sampling is off: it costs what is to be measured, and with OS calls traced nsys
may hang. Where there is a GPU, only our capture is recorded, between cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dtprof.errors import MissingExtra

# folder of the reports below the run
FOLDER = "nsys"
# has the collector nsys frame the capture with cudaProfilerStart and cudaProfilerStop
CAPTURE_VARIABLE = "DTPROF_NSYS_CAPTURE"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
# nvtx from 0.2.12 on records no push/pop ranges under nsys up to 2022.4
_LAST_OLD_NSYS, _FIRST_NEW_NVTX = (2022, 4), (0, 2, 12)
_INSTALL = "apt-get install -y --no-install-recommends nsight-systems"
_EXPORT_SECONDS = 600


@dataclass(frozen=True)
class Nsys:
    """An installed nsys."""

    program: str
    version: tuple[int, ...]


def find() -> Nsys:
    """The nsys on PATH; MissingExtra with the command that installs it where there is none."""
    program = shutil.which("nsys")
    if program is None:
        raise MissingExtra("--nsys: nsys is not on PATH", f"on Debian, with contrib and non-free enabled: {_INSTALL}")
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingExtra(f"--nsys: {program} cannot be run ({error})", f"install it again: {_INSTALL}") from error
    found = re.search(r"\d+(?:\.\d+)+", said)
    return Nsys(program, tuple(int(n) for n in found[0].split(".")) if found else ())


def has_gpu() -> bool:
    """Does this machine have a GPU of NVIDIA?"""
    return any(re.fullmatch(r"nvidia\d+", p.name) for p in Path("/dev").glob("nvidia*"))


def report_name(environment: Mapping[str, str]) -> str:
    """Name of the report without its ending, as nsys expands it: by rank where it is known, else by host."""
    known = next((key for key in _RANKS if environment.get(key)), None)
    return f"rank%q{{{known}}}" if known else "report_%h"


def command_line(
    nsys: Nsys, command: Sequence[str], folder: Path, environment: Mapping[str, str], *, gpu: bool, capture: bool
) -> list[str]:
    """``command`` under ``nsys profile``; ``capture`` records our window only, which needs a GPU."""
    words = [nsys.program, "profile", "--trace", "cuda,nvtx" if gpu else "nvtx", "--sample", "none", "--cpuctxsw", "none"]
    if gpu and capture:
        words += ["--capture-range", "cudaProfilerApi", "--capture-range-end", "stop"]
    words += ["--force-overwrite", "true", "--output", str(folder / report_name(environment))]
    return [*words, *command]


def doubt(nsys: Nsys) -> str:
    """Why our ranges will be missing from the report, or ""."""
    installed = nvtx_version()
    if not installed:
        return "nvtx is not installed: the report will have no steps and ranges of ours; pip install 'nvtx<0.2.12'"
    numbers = tuple(int(n) for n in re.findall(r"\d+", installed)[:3])
    if nsys.version[:2] <= _LAST_OLD_NSYS and numbers >= _FIRST_NEW_NVTX:
        told = ".".join(map(str, nsys.version[:2]))
        return f"nvtx {installed} records no ranges under nsys {told}: pip install 'nvtx<0.2.12', or use a newer nsys"
    return ""


def nvtx_version() -> str:
    """Version of the package nvtx beside us, or ""."""
    try:
        return version("nvtx")
    except PackageNotFoundError:
        return ""


def reports(folder: Path) -> list[Path]:
    """The reports of a run, by name."""
    return sorted(folder.glob("*.nsys-rep"))


def verdict(nsys: Nsys, folder: Path, measured: bool) -> str:
    """What is wrong with the reports after the job, or "": none there, or none of our ranges though steps were measured."""
    found = reports(folder)
    if not found:
        left = next(iter(sorted(folder.glob("*.qdstrm"))), None)
        if left is not None:
            return f"nsys left {left.name} and no report: its importer (host-linux-x64) is missing or was killed"
        return f"nsys wrote no report to {folder}"
    if measured and not sum(_our_ranges(nsys, report) for report in found):
        told = ".".join(map(str, nsys.version)) or "of unknown version"
        return f"the report holds no range of ours: nvtx {nvtx_version() or '(not installed)'} and nsys {told} do not fit"
    return ""


def _our_ranges(nsys: Nsys, report: Path) -> int:
    """Ranges of the domain dtprof; exports the report beside it, where dtprof and nsys find it later."""
    database = report.with_suffix(".sqlite")
    words = [nsys.program, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(database), str(report)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(words, capture_output=True, timeout=_EXPORT_SECONDS, check=False)
    if not database.exists():
        return 0
    query = (
        "SELECT count(*) FROM NVTX_EVENTS e WHERE e.eventType IN (59, 60) AND EXISTS (SELECT 1 FROM NVTX_EVENTS d"
        " WHERE d.eventType = 75 AND d.text = 'dtprof' AND d.domainId = e.domainId AND d.globalTid >> 24 = e.globalTid >> 24)"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            return int(opened.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0


def collectors(chosen: Sequence[str] | None, installed: Sequence[str]) -> list[str]:
    """Collectors of the job: those chosen, or all but torch's profiler, which would claim the same hardware; and nsys."""
    names = [n for n in installed if n != "torch_profiler"] if chosen is None else list(chosen)
    return names if "nsys" in names else [*names, "nsys"]


def folder_of(out: Path) -> Path:
    """Where the reports of a run lie; made where it is missing."""
    folder = out.absolute() / FOLDER
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    return folder

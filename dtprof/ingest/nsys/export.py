"""``.nsys-rep`` reports: exported by ``nsys`` itself into the cache directory, never beside the file."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from dtprof.errors import InputError, MissingExtra
from dtprof.ingest import cache

REPORTS = (".nsys-rep", ".qdrep")


def is_report(path: Path) -> bool:
    """Is this one of nsys's own files, by its name?"""
    return path.name.endswith(REPORTS)


def exported(path: Path) -> Path:
    """The SQLite export of a report: the one kept in the cache, else a new one.

    Raises MissingExtra where ``nsys`` is not on PATH, InputError where it cannot export the file.
    """
    if not path.stat().st_size:
        raise InputError(f"{path}: the report is empty", "profile again, and let the job and nsys end by themselves")
    folder = _folder(path)
    target = folder / (path.name.removesuffix(path.suffix) + ".sqlite")
    if target.exists():
        return target
    program = shutil.which("nsys")
    command = ["nsys", "export", "--type", "sqlite", "--output", path.with_suffix(".sqlite").name, path.name]
    if program is None:
        raise MissingExtra(
            f"{path}: a report has to be exported by nsys, which is not on PATH",
            f"apt-get install nsight-systems (NVIDIA's package), or where it is installed: {shlex.join(command)}",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{folder}: the cache cannot be written ({error.strerror})", "set DTPROF_CACHE to another folder"
        ) from error
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as scratch:
        made = Path(scratch) / "report.sqlite"
        said = ""
        # payloads are left out unless asked for; old versions do not know the options
        for extra in (["--include-blobs", "true", "--include-json", "true"], []):
            arguments = ["export", "--type", "sqlite", "--force-overwrite", "true", *extra, "--output", str(made), str(path)]
            ended = subprocess.run([program, *arguments], capture_output=True, text=True, errors="replace", check=False)
            said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:][0] if ended.stderr or ended.stdout else ""
            if ended.returncode == 0 and made.exists():
                os.replace(made, target)
                return target
    raise InputError(
        f"{path}: nsys cannot export it ({said[:200] or 'no reason given'})", f"try it by hand: {shlex.join(command)}"
    )


def _folder(path: Path) -> Path:
    stat = path.stat()
    identity = f"{path.resolve()}|{stat.st_ino}|{stat.st_size}|{stat.st_mtime_ns}"
    return cache.root() / "nsys" / hashlib.sha256(identity.encode()).hexdigest()[:24]

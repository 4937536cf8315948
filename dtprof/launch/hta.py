"""Holistic Trace Analysis as a second opinion on the traces of a run, asked in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dtprof.errors import InputError
from dtprof.run import Run

INSTALL = "pip install 'dtprof[hta]'"


def traces(run: Run) -> dict[int, str]:
    """Rank -> trace file; one trace without a rank is rank 0."""
    root, found = Path(run.path), dict[int, str]()
    root = root if root.is_dir() else root.parent
    for part in run.parts:
        source = root / part.source
        inside = sorted(source.glob("trace*.json*")) if source.is_dir() else [source]
        file = next((f for f in inside if f.is_file() and ".json" in f.name), None)
        rank = 0 if part.rank is None and len(run.parts) == 1 else part.rank
        if file is not None and rank is not None:
            found.setdefault(rank, str(file))
    return found


def ask(
    files: Mapping[int, str], what: Literal["analyses", "breakdowns"], timeout: float, operator: str | None = None
) -> dict[str, Any]:
    """What HTA says of these traces (see ``hta_child``); InputError where it says nothing."""
    with tempfile.TemporaryDirectory(prefix="dtprof-hta-") as folder:
        child = Path(__file__).with_name("hta_child.py")
        pairs = [f"{rank}={path}" for rank, path in sorted(files.items())]
        words = [sys.executable, "-P", str(child), folder, what, operator or "-", *pairs]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            raise InputError(f"HTA did not end within {timeout:g} s", "give it longer (--timeout), or fewer traces") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InputError(
            f"HTA ended with: {said[-1] if said else f'exit code {done.returncode}'}", "dtprof report reads the same files"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found

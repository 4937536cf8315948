"""What runs in processes of its own, with a time limit: torch, NVML, nsys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any

TORCH_S, NVML_S, PROGRAM_S = 90.0, 20.0, 20.0


def limited(words: list[str], limit_s: float) -> tuple[int | None, str, str]:
    """Exit code (None where it did not end in time), stdout and stderr of a command.

    What does not end is killed with all that it started, and not waited for: one that hangs in a driver cannot be killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        code: int | None = None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        out.seek(0)
        err.seek(0)
        return code, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace")


def probe(module: str, limit_s: float) -> dict[str, Any]:
    """The JSON that a probe printed on its last line; ``error`` where it failed, died or did not answer in time."""
    words = [sys.executable, "-W", "ignore", "-c", f"from dtprof.cli.doctor.{module} import main; main()"]
    code, out, err = limited(words, limit_s)
    if code is None:
        return {"error": f"no answer within {limit_s:.0f} s", "kind": "hang"}
    try:
        found = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        said = err.strip().rpartition("\n")[2] or f"the process ended with {code}"
        return {"error": said, "kind": "missing" if "No module named 'torch'" in said else "failed"}
    return found if isinstance(found, dict) else {"error": "no answer", "kind": "failed"}


def torch() -> dict[str, Any]:
    """What torch can do; see ``torch_probe``."""
    return probe("torch_probe", TORCH_S)


def nvml() -> dict[str, Any]:
    """Driver, GPUs and their connections; see ``nvml_probe``."""
    return probe("nvml_probe", NVML_S)


def program_version(name: str) -> str | None:
    """The version that a program states, "?" where it states none, None where there is no such program."""
    path = shutil.which(name)
    if path is None:
        return None
    _, out, err = limited([path, "--version"], PROGRAM_S)
    found = re.search(r"\d+(?:\.\d+)+", out + err)
    return found[0] if found else "?"

"""Where a launch cannot be followed, and how that is said: before the start from the command's words, afterwards from what
the processes left."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from dtprof.launch import Outcome

_CONTAINERS = ("docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "udocker")
_ELSEWHERE = ("ssh", "pdsh", "clush", "kubectl", "sbatch", "ray", "sky", "modal", "qsub", "bsub", "flux")
_MPI = ("mpirun", "mpiexec", "orterun")
_MACHINES = ("srun", "aprun", "jsrun")
_PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")
_INSIDE = "use dtprof inside: dtprof run -- COMMAND there, or dtprof.profile in the script"


def warning(command: Sequence[str]) -> str:
    """One line where this command's processes will probably not be seen; "" where nothing speaks against it."""
    words = [os.path.basename(word) for word in command]
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        if at == 0 and word in _CONTAINERS:
            return f"{word} starts processes with an environment of their own, where they cannot be followed; {_INSIDE}"
        if at == 0 and word in _ELSEWHERE:
            return f"{word} starts processes elsewhere, where they cannot be followed; {_INSIDE}"
        if word == "env" and any(flag in rest[:3] for flag in ("-i", "-", "--ignore-environment")):
            return f"env {rest[0]} takes the environment away, without which processes cannot be followed; {_INSIDE}"
        if word == "sudo" and not any(flag in ("-E", "--preserve-env") for flag in rest[:4]):
            return f"sudo takes the environment away, without which processes cannot be followed; give it -E, or {_INSIDE}"
        if _PYTHON.match(word) and (flag := _shut(rest)):
            return f"{word} {flag} reads neither PYTHONPATH nor sitecustomize, so it cannot be followed; leave {flag} out"
    return ""


def _shut(words: Sequence[str]) -> str:
    """The flag of a python command line that shuts our hook out, or ""."""
    for word in words:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            return ""
        if not word.startswith("--") and any(letter in word[1:] for letter in "EIS"):
            return word
    return ""


def why_nothing(outcome: Outcome, command: Sequence[str]) -> str:
    """Why no process of the job was measured, from what the processes said of themselves."""
    if broken := outcome.told("no dtprof"):
        return f"the job's Python cannot load dtprof ({broken[0]}); install dtprof in that environment"
    if outcome.told("torch"):
        return "torch was loaded, but no optimizer of torch.optim made a step; mark steps with dtprof.profile and prof.step()"
    if outcome.told("python"):
        return "no process of the job loaded torch"
    if os.path.basename(command[0]) in _MPI:
        return f"no Python process had our variables; mpirun hands them on with -x PYTHONPATH -x DTPROF_LAUNCH; {_INSIDE}"
    if os.path.basename(command[0]) in _MACHINES:
        return "no process of this machine was; what ranks on others recorded lies in the same folder there: see dtprof merge"
    return warning(command) or f"no Python process was started with the environment that it was given; {_INSIDE}"

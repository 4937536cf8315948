"""One thing that dtprof looks for on a machine, and where its name is installed from."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from dtprof.plugins import attempt

State = Literal["ok", "limited", "missing", "absent", "unknown"]


@dataclass(frozen=True)
class Item:
    """``state``: ok; limited (works in part); missing (``get`` would add it); absent (not of this machine); unknown.

    ``found`` is what is there or why not, ``gives`` what it lets dtprof measure, ``get`` the exact command that adds it.
    """

    section: str
    name: str
    state: State
    found: str
    gives: str
    get: str | None = None


@dataclass(frozen=True)
class Conflict:
    """Two things that do not go together here: what, its effect, the command or sentence that mends it."""

    what: str
    effect: str
    get: str


Check = Callable[[], list[Item]]


def guarded(section: str, name: str, check: Check) -> list[Item]:
    """The items of a check; one that fails is itself an item, for a doctor that falls ill helps nobody."""
    found, error = attempt(check)
    return [Item(section, name, "unknown", f"the check failed: {error}", "")] if error else list(found)


def installed(package: str) -> str | None:
    """Version of an installed Python package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pip(*packages: str) -> str:
    """The command that installs Python packages for this interpreter."""
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def system_package(debian: str, fedora: str) -> str:
    """The command that installs a program, by the package manager that is here."""
    if shutil.which("dnf"):
        return f"dnf install {fedora}"
    return f"apt-get install {debian}"


def numbers(text: str) -> tuple[int, ...]:
    """A version as numbers: "0.2.17+x" is (0, 2, 17)."""
    found: list[int] = []
    for word in text.replace("+", ".").split("."):
        if not word.isdigit():
            break
        found.append(int(word))
    return tuple(found)

"""Run by Python at the start of every process of a job under ``dtprof run``, whose PYTHONPATH begins with this folder.

It arranges that ``dtprof.launch.follow`` is told once torch has been loaded, hands over to the sitecustomize that this one
hides, and leaves ``sys.path`` as it would be without it. Nothing but the standard library is used, and a process that
never loads torch pays for nothing else.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _note(what: str, text: str = "") -> None:
    """Leave a line for the launcher; see ``dtprof.session.launched.tell``."""
    try:
        folder = json.loads(os.environ["DTPROF_LAUNCH"])["notes"]
        if not folder:
            return
        with open(os.path.join(folder, f"{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, "text": text}) + "\n")
    except (KeyError, ValueError, TypeError, OSError):
        return


def _torch_is_loaded() -> None:
    try:
        from dtprof.launch import follow
    except Exception as error:  # noqa: BLE001 - the job's Python may lack dtprof or what it needs
        _note("no dtprof", f"{sys.executable}: {type(error).__name__}: {error}")
        return
    follow.begin()


class _Finder:
    """Lets the others find torch, and is told when it has been loaded."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec that another finder has for torch, its loader watched; None for everything else."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not _Finder else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """A loader that is another's in everything; after its module has been executed, it is gone from it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """As the loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then say so."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(_Finder)
        _torch_is_loaded()


def _hand_over() -> None:
    """Execute the sitecustomize, module or package, that would have been found without this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if not entry or os.path.abspath(entry) != _HERE]
if os.environ.get("DTPROF_LAUNCH"):
    _note("python", sys.executable)
    sys.meta_path.insert(0, _Finder)
_hand_over()

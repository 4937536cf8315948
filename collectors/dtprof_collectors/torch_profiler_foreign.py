"""Profilers of the job: they have the right of way, and what they export is linked into the part folder."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT_EXPORTS = 8


class ForeignProfilers:
    """Watches for profilers of the job from the moment ours is prepared until it ends."""

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        import torch.autograd.profiler as module

        self._class: Any = module.profile
        self._module: Any = module
        self._on_foreign = on_foreign
        self._original: Any = None
        self._installed: Any = None

    def any_now(self) -> bool:
        """Is one running, or prepared and about to run?"""
        if self._module._is_profiler_enabled:
            return True
        objects = (o for o in gc.get_referrers(self._class) if isinstance(o, self._class))
        return any(o.entered and o.enabled and o.kineto_results is None for o in objects)

    def begin(self, ours: Any) -> None:
        """From now on call ``on_foreign`` before any other profiler is prepared."""
        original = self._original = self._class._prepare_trace
        mine = ours.profiler

        def prepare(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if profiler is not mine and self._original is not None:
                self._on_foreign()
            return original(profiler, *args, **kwargs)

        self._class._prepare_trace = self._installed = prepare

    def end(self) -> None:
        """Stop watching."""
        original, self._original = self._original, None
        # what was installed holds our profiler, and this object
        installed, self._installed = self._installed, None
        if original is not None and self._class._prepare_trace is installed:
            self._class._prepare_trace = original


class JobExports:
    """Links every trace that the job's own profiler exports to ``trace-job-0001.json`` and so on in the part folder.

    ``told`` has path (as the job gave it), file (ours, or None), bytes and problem of each; the oldest links are removed
    when there are more than KEPT_EXPORTS.
    """

    def __init__(self, folder: Path, on_export: Callable[[], None]) -> None:
        self._folder, self._on_export = folder, on_export
        self._class: Any = None
        self._original: Any = None
        self._installed: Any = None
        self.told: list[dict[str, Any]] = []
        self._ours = False

    def begin(self) -> None:
        """Watch, if torch.profiler is loaded and is not watched yet."""
        module = sys.modules.get("torch.profiler.profiler")
        kind = getattr(module, "_KinetoProfile", None)
        if kind is None or self._class is not None:
            return
        original = self._original = kind.export_chrome_trace

        def export(profiler: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            result = original(profiler, path, *args, **kwargs)
            if not self._ours and self._class is not None:
                self._link(path)
            return result

        self._class = kind
        kind.export_chrome_trace = self._installed = export

    def quietly(self, export: Callable[..., Any]) -> Callable[..., Any]:
        """An export that is our own."""

        def ours(*args: Any) -> Any:
            self._ours = True
            try:
                return export(*args)
            finally:
                self._ours = False

        return ours

    def _link(self, path: Any) -> None:
        """Inside the job's own call: whatever goes wrong is told, never raised."""
        told: dict[str, Any] = {"path": os.path.abspath(os.fspath(path)), "file": None}
        try:
            source = Path(told["path"])
            suffix = ".json.gz" if source.name.endswith(".gz") else ".json"
            target = self._folder / f"trace-job-{len(self.told) + 1:04d}{suffix}"
            told["bytes"] = source.stat().st_size
            told["problem"] = None if suffix == ".json.gz" else _problem(source)
            os.link(source, target)
            told["file"] = target.name
            for old in [t for t in self.told if t["file"]][: -KEPT_EXPORTS + 1]:
                (self._folder / old["file"]).unlink(missing_ok=True)
                old["file"] = None
        except OSError as error:
            told["problem"] = f"{type(error).__name__}: {error}"
        self.told.append(told)
        self._on_export()

    def end(self) -> None:
        """Stop watching."""
        kind, self._class = self._class, None
        installed, self._installed = self._installed, None
        if kind is not None and kind.export_chrome_trace is installed:
            kind.export_chrome_trace = self._original


def _problem(path: Path) -> str | None:
    """Why a plain JSON file is none, judged by its two ends; None where it looks whole."""
    with path.open("rb") as file:
        head = file.read(64).lstrip()
        file.seek(max(path.stat().st_size - 64, 0))
        tail = file.read().rstrip()
    return None if head[:1] in (b"{", b"[") and tail[-1:] in (b"}", b"]") else "the text is cut off"

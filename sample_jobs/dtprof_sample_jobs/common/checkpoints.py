"""Checkpoints that a killed job resumes from: written every N steps by DCP, sync or async, whole or not at all.

FOLDER/step-00000004 is the state after step 4. DCP writes ``.metadata`` last, so a folder without it is a save that was cut
short, and is passed over. FOLDER/progress holds the last step that ended, and tells the next attempt what it has to repeat.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save
from torch.optim import Optimizer

from dtprof_sample_jobs.common.delay import hold_gil

MODES = ("sync", "async", "process")
KEPT = 2
_NAME = re.compile(r"step-(\d+)")


def found_in(folder: Path) -> dict[int, Path]:
    """The whole checkpoints of a folder, by step."""
    named = {int(m.group(1)): path for path in folder.glob("step-*") if (m := _NAME.fullmatch(path.name))}
    return {step: named[step] for step in sorted(named) if (named[step] / ".metadata").is_file()}


class Checkpoints:
    """Saves and loads; every method is called by all ranks together.

    ``mode``: in the step (sync), by a thread (async) or by a process of its own (process), which copy the state first.
    ``gil_ns``: planted, a thread of each save keeps Python's lock for so long as the next step begins.
    """

    def __init__(self, folder: Path, every: int, mode: str, gil_ns: int = 0) -> None:
        self.folder, self.every, self.mode, self.gil_ns = folder, every, mode, gil_ns
        # the saving thread must not mix its collectives with those of training
        self.group = dist.new_group(backend="gloo", group_desc="checkpoint")
        self.pending: Future[Any] | None = None
        self._to_plan = False
        folder.mkdir(parents=True, exist_ok=True)
        self._progress = os.open(folder / "progress", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.reached = int(os.pread(self._progress, 20, 0) or -1)

    def due(self, step: int) -> bool:
        """Does this step end with a checkpoint?"""
        return step % self.every == self.every - 1

    def note(self, step: int) -> None:
        """The step has ended; a single write, which no kill can cut short."""
        if dist.get_rank() == 0:
            os.pwrite(self._progress, f"{step:<20}".encode(), 0)

    def save(self, step: int, model: nn.Module, optimizer: Optimizer) -> None:
        """Write the state after ``step``; waits for the save before it."""
        self.wait()
        states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        path, group = self.folder / f"step-{step:08d}", self.group
        if self.mode == "sync":
            save(states, checkpoint_id=path, process_group=group)
        else:
            kind = AsyncCheckpointerType.THREAD if self.mode == "async" else AsyncCheckpointerType.PROCESS
            pending = async_save(states, checkpoint_id=path, process_group=group, async_checkpointer_type=kind)
            assert isinstance(pending, Future)
            self.pending = pending
        self._to_plan = self.gil_ns > 0
        if dist.get_rank() == 0:
            for old in list(found_in(self.folder).values())[:-KEPT]:
                shutil.rmtree(old)

    def plan(self) -> None:
        """Planted: as the forward pass after a save begins, its thread takes Python's lock."""
        if self._to_plan:
            self._to_plan = False
            threading.Thread(target=hold_gil, args=(self.gil_ns,)).start()

    def wait(self) -> None:
        """Until the save that is under way has ended."""
        if self.pending is not None:
            self.pending.result()
            self.pending = None

    def load(self, model: nn.Module, optimizer: Optimizer) -> int:
        """Read the newest whole checkpoint, the same on all ranks; the step that comes next, 0 where there is none."""
        newest: list[tuple[int, Path] | None] = [next(reversed(found_in(self.folder).items()), None)]
        dist.broadcast_object_list(newest, src=0, group=self.group)
        if newest[0] is None:
            return 0
        step, path = newest[0]
        states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        load(states, checkpoint_id=path, process_group=self.group)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        return step + 1

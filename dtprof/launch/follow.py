"""In a process of the job, once torch has been loaded: put the edits into force, find the steps, begin the session.

The session begins at the first step of an optimizer. So it runs in the ranks and nowhere else: torchrun's agent, the
workers of a data loader or of the compiler load torch, too, and never step one. By then the process group exists, the
rank is known, the model is wrapped, and a script that uses dtprof itself has begun a session of its own, which wins.

What is changed in torch: ``Optimizer`` steps, ``GradScaler.step``, ``backward`` and the iterators of ``DataLoader`` are
wrapped by functions that call them; while torch.compile traces them they do nothing else. Nothing raised in here reaches
the job.
"""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from typing import Any

from dtprof.edits import edits_of
from dtprof.launch import construct, seen, wrap
from dtprof.launch.steps import StepFinder
from dtprof.launch.wrap import OWNER, guard
from dtprof.session import Annotation, Session, active, annotate, launched, timed_input
from dtprof.session.anomaly import options_of
from dtprof.session.identity import identify


def begin() -> None:
    """Called by ``site/sitecustomize.py`` when torch has been loaded."""
    plan = launched.plan()
    if plan is None:
        return
    launched.tell("torch")
    guard.call(OWNER, "edits", -1, construct.apply, edits_of(plan.edits))
    if plan.measured:
        guard.call(OWNER, "hooks", -1, _Follower(plan).hook)


class _Follower:
    """Finds the steps of this process and keeps its session."""

    def __init__(self, plan: launched.Plan) -> None:
        self.plan = plan
        self.steps = StepFinder(self._end_step)
        self._session: Session | None = None
        self._pid = -1
        self._inside = 0

    def hook(self) -> None:
        """Wrap what tells the steps."""
        import torch

        wrap.attend(torch)
        optimizer: Any = torch.optim.Optimizer
        made, profiled = optimizer._patch_step_function, optimizer.profile_hook_step
        self._optimizer = annotate("optimizer")
        backward = annotate("backward")

        def patch_step_function(this: Any) -> None:
            made(this)
            guard.call(OWNER, "optimizer", -1, self.steps.created, this)

        def profile_hook_step(function: Any) -> Any:
            # those of torch break the graph in their first line
            of_torch = str(getattr(function, "__module__", "")).startswith("torch.optim")
            return wrap.around(profiled(function), self._enter, self._leave, may_break=of_torch)

        optimizer._patch_step_function = functools.wraps(made)(patch_step_function)
        optimizer.profile_hook_step = staticmethod(functools.wraps(profiled)(profile_hook_step))
        self._hook_scaler(torch.amp.GradScaler)
        self._hook_input(torch.utils.data.dataloader._BaseDataLoaderIter)
        torch.autograd.backward = wrap.around(
            torch.autograd.backward, lambda _: _open(backward), lambda: backward.__exit__(None, None, None)
        )

    def _hook_scaler(self, scaler: Any) -> None:
        """A gradient scaler that leaves a step out ends an iteration all the same."""
        inside = 0

        def enter(args: tuple[Any, ...]) -> None:
            nonlocal inside
            self._enter(args[1:])
            inside = self._inside

        def leave() -> None:
            self.steps.skipped += self._inside == inside
            self._leave()

        scaler.step = wrap.around(scaler.step, enter, leave)

    def _hook_input(self, iterator: Any) -> None:
        """The time inside ``next()`` of a data loader's iterator is input waiting."""
        original = iterator.__next__

        def following(this: Any) -> Any:
            return timed_input(original, this)

        wrap.leave_uncompiled(following.__code__)
        iterator.__next__ = functools.wraps(original)(following)

    def _enter(self, args: tuple[Any, ...]) -> None:
        """The optimizer that comes first in ``args`` is about to step."""
        if self._pid != os.getpid() and not _in_graph():
            self._begin_session()
        self.steps.enter(args[0])
        if self.steps.depth() > 1:
            self._inside += 1
        else:
            self._optimizer.__enter__()

    def _leave(self) -> None:
        if self.steps.depth() == 1:
            self._optimizer.__exit__(None, None, None)
        self.steps.leave()

    def _begin_session(self) -> None:
        """In this process for the first time, also in one that was forked: begin, unless the script has its own."""
        if self._pid >= 0:
            self.steps = self.steps.anew()
        self._pid = os.getpid()
        self._session = None
        if launched.begun_by_script or active() is not None:
            return
        plan = launched.plan() or self.plan
        launched.facts.update(seen.facts(), command=plan.command)
        self._session = Session(
            plan.out, plan.capture, plan.collectors, job=None, knobs=None, options=None, first_step=0,
            layout=seen.layout(), anomaly=options_of(plan.anomaly),
        )  # fmt: skip
        self._session.inferred = True
        self._session.start()
        for callback in gc.callbacks:
            # a collection may happen where torch's compiler looks
            function = getattr(callback, "__func__", callback)
            if str(getattr(function, "__module__", "")).startswith("dtprof"):
                wrap.leave_uncompiled(function.__code__)
        who = identify()
        launched.tell("session", str(who.rank))
        if who.conflict:
            launched.tell("conflict", f"rank {who.rank} from {who.rank_from}, but {who.conflict}")
        atexit.register(self._end)
        if parent_process() is not None:
            # children of multiprocessing leave by os._exit, past atexit
            Finalize(None, self._end, exitpriority=10)

    def _end_step(self, kind: str | None) -> None:
        if self._session is not None and active() is self._session and not _in_graph():
            launched.facts["optimizers"] = self.steps.pattern()
            self._session.step(kind=kind)

    def _end(self) -> None:
        """The process ends in good order: before the session is stopped, the last step ends."""
        if self._session is None or self._pid != os.getpid():
            return
        guard.call(OWNER, "end", -1, self.steps.finish)
        if active() is self._session:
            launched.facts["optimizers"] = self.steps.pattern()
        self._session.stop()


def _open(phase: Annotation) -> None:
    phase.__enter__()


def _in_graph() -> bool:
    """Is a CUDA graph being recorded? Nothing of ours may run into it."""
    cuda: Any = sys.modules.get("torch.cuda")
    return cuda is not None and cuda.is_initialized() and bool(cuda.is_current_stream_capturing())

"""One child process: its signals, its end, its exit code as a shell would have it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
NOT_FOUND, NOT_EXECUTABLE = 127, 126
# siginfo's code of a signal that the kernel sent, such as Ctrl-C at a terminal: the child has got that one, too
_SI_KERNEL = 0x80
_GRACE_S = 15.0


def run_child(
    command: Sequence[str], env: Mapping[str, str], *, stdout: int | None = None, timeout_s: float | None = None
) -> tuple[int, str]:
    """Run to the end; returns (exit code, problem). Code 128 + N where signal N ended it, 127 and 126 as a shell has them.

    Signals that are sent to this process meanwhile are passed on. ``timeout_s`` ends the child (SIGTERM, then SIGKILL
    after a while) and is named in the problem. Outside the main thread no signal is passed on, for Python has none there.
    """
    watched = {*FORWARDED, signal.SIGCHLD} if threading.current_thread() is threading.main_thread() else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        # the child must not inherit what is blocked here only to be waited for
        child = subprocess.Popen(
            list(command), env=dict(env), stdout=stdout, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
        )
        return _wait(child, watched, timeout_s)
    except OSError as error:
        return _not_started(command[0], error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _not_started(program: str, error: OSError) -> tuple[int, str]:
    if isinstance(error, FileNotFoundError) and not os.path.exists(program):
        return NOT_FOUND, f"{program}: command not found"
    return NOT_EXECUTABLE, f"{program}: cannot be executed ({error.strerror})"


def _wait(child: subprocess.Popen[bytes], watched: set[signal.Signals], timeout_s: float | None) -> tuple[int, str]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    problem = ""
    while child.poll() is None:
        if deadline is not None and time.monotonic() >= deadline:
            child.send_signal(signal.SIGKILL if problem else signal.SIGTERM)
            problem, deadline = f"ended after {timeout_s:g} s", time.monotonic() + _GRACE_S
        _pass_on(child, watched)
    code = child.returncode
    return (code if code >= 0 else 128 - code), problem


def _pass_on(child: subprocess.Popen[bytes], watched: set[signal.Signals]) -> None:
    """Wait a moment for a signal or for the child's end; a signal goes to the child, unless it has it already."""
    if not watched:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.2)
        return
    got = signal.sigtimedwait(watched, 0.5)
    if got is None or got.si_signo == signal.SIGCHLD:
        return
    if got.si_code != _SI_KERNEL or got.si_signo not in (signal.SIGINT, signal.SIGQUIT):
        child.send_signal(got.si_signo)

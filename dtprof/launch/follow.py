"""In a process of the job, once torch has been loaded: apply the edits, find the steps, begin the session."""

from __future__ import annotations

from dtprof.session import launched


def begin() -> None:
    """Called by ``site/sitecustomize.py``; nothing that is raised in here reaches the job."""
    launched.tell("torch")

"""What both callbacks share: a session that follows a loop of somebody else's, and the phase that runs now."""

from __future__ import annotations

import os
from typing import Any

from dtprof.session import Annotation, Session, annotate, profile


class Recording:
    """One session per training, made anew each time; ``options`` are those of ``dtprof.profile``."""

    def __init__(self, out: str | os.PathLike[str], options: dict[str, Any]) -> None:
        # a window that is none is the user's error, and is said where the callback is made
        profile(out, **options)
        self.out, self.options = out, options
        self._session: Session | None = None
        self._phase: Annotation | None = None

    def start(self, first_step: int) -> None:
        """Begin; ``first_step`` numbers the first step, unless the options do."""
        self.stop()
        self._session = profile(self.out, **{"first_step": first_step, **self.options})
        self._session.start()

    def phase(self, name: str | None) -> None:
        """From now on this phase runs, and the one before has ended."""
        before, self._phase = self._phase, None
        if before is not None:
            before.__exit__(None, None, None)
        if name is not None and self._session is not None:
            self._phase = annotate(name)
            self._phase.__enter__()

    def step(self, kind: str | None = None, loss: Any = None) -> None:
        """End a step of this kind; ``None`` is a training step."""
        self.phase(None)
        if self._session is not None:
            self._session.step(kind=kind, loss=loss)

    def stop(self) -> None:
        """End the session, where one is running."""
        self.phase(None)
        session, self._session = self._session, None
        if session is not None:
            session.stop()

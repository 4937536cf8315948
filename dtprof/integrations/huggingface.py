"""A callback for the Hugging Face Trainer: ``Trainer(…, callbacks=[DtprofCallback("runs/a")])``.

A step is one of the Trainer's own (``state.global_step``): micro-batches of gradient accumulation belong to it.
Evaluation and the writing of a checkpoint are steps of their own kind. The Trainer hands no loss to its callbacks except in its
log, so none is recorded. Its log, its integrations and its progress bar are left alone.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from dtprof.errors import MissingExtra
from dtprof.integrations.recording import Recording


def _callback_class() -> Any:
    try:
        return import_module("transformers").TrainerCallback
    except ModuleNotFoundError as error:
        raise MissingExtra("transformers is not installed", "pip install 'dtprof[huggingface]'") from error


_Callback: Any = _callback_class()


class DtprofCallback(_Callback):  # type: ignore[misc]
    """Records a training into the run folder ``out``; ``options`` are those of ``dtprof.profile``.

    Raises InputError for a capture window that is none; nothing after that.
    """

    def __init__(self, out: str | os.PathLike[str], **options: Any) -> None:
        self._recording = Recording(out, options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin: the process group exists and the model is wrapped."""
        self._recording.start(state.global_step)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer steps."""
        self._recording.phase("optimizer")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self._recording.phase(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step has ended."""
        self._recording.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation has ended: all since the last step was spent in it."""
        self._recording.step("eval")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        self._recording.step("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the session."""
        self._recording.stop()

"""A Lightning callback: ``Trainer(callbacks=[DtprofCallback("runs/a")])``, with ``lightning`` or ``pytorch_lightning``.

A step is what ends with an optimizer's step: batches that only accumulate gradients belong to the step of the batch that
steps, and several optimizers of one batch are one step. Validation and the writing of a checkpoint are steps of their own kind;
the check of the validation loop before training is not recorded. The loss of a step is the sum of what Lightning
returns for its batches, which is their mean; one on a device is not read. Loggers and progress bars are left alone.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from dtprof.errors import MissingExtra
from dtprof.integrations.recording import Recording

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """Lightning's Callback: of the package that the script has imported already, else of the one that is installed."""
    for name in sorted(_PACKAGES, key=lambda n: n not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise MissingExtra("Lightning is not installed", "pip install 'dtprof[lightning]'")


_Callback: Any = _callback_class()


class DtprofCallback(_Callback):  # type: ignore[misc]
    """Records a fit into the run folder ``out``; ``options`` are those of ``dtprof.profile``.

    Raises InputError for a capture window that is none; nothing after that.
    """

    def __init__(self, out: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._recording = Recording(out, options)
        self._global_step = 0
        self._loss: Any = None
        self._saving: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin: the process group exists and the model is wrapped."""
        self._global_step, self._loss = trainer.global_step, None
        self._recording.start(trainer.global_step)
        self._watch_saving(trainer)

    def _watch_saving(self, trainer: Any) -> None:
        """Every way to a checkpoint goes through the trainer's ``save_checkpoint``: a step of its own ends with it."""
        original = self._saving = trainer.save_checkpoint

        def save_checkpoint(*args: Any, **kwargs: Any) -> None:
            self._recording.phase("checkpoint")
            try:
                original(*args, **kwargs)
            finally:
                self._recording.step("checkpoint")

        trainer.save_checkpoint = save_checkpoint

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """The forward pass begins."""
        self._recording.phase("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The backward pass begins."""
        self._recording.phase("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The backward pass has ended."""
        self._recording.phase(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """An optimizer steps."""
        self._recording.phase("optimizer")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step if an optimizer has stepped since the last one; then the next batch is waited for."""
        self._recording.phase(None)
        self._add(outputs.get("loss") if isinstance(outputs, dict) else outputs)
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            loss, self._loss = self._loss, None
            self._recording.step(loss=loss)
        self._recording.phase("data")

    def _add(self, loss: Any) -> None:
        """Sum what is at hand; a tensor on a device is passed on as it is, and the session says that it was not read."""
        device = getattr(getattr(loss, "device", None), "type", None)
        if device == "cpu" and loss.numel() == 1:
            self._loss = float(loss.detach()) + (self._loss if isinstance(self._loss, float) else 0.0)
        elif device is not None:
            self._loss = loss.detach()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self._recording.phase("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A step of kind eval ends."""
        if not trainer.sanity_checking:
            self._recording.step("eval")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Leave the checkpoints that Lightning writes as its last act their step; the session ends in teardown."""
        self._recording.phase(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what there is."""
        self._end(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the session."""
        if stage == "fit":
            self._end(trainer)

    def _end(self, trainer: Any) -> None:
        saving, self._saving = self._saving, None
        if saving is not None:
            vars(trainer).pop("save_checkpoint", None)
        self._recording.stop()

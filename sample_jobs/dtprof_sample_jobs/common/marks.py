"""Ranges around the backward pass of every block: autograd calls it, so that no ``with`` can stand around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

import dtprof
from dtprof.session import Annotation


class BackwardMarks:
    """Marks blocks in backward, as ``block backward`` with the layer's name, from the output's gradient to the input's.

    ``microbatch`` is the number that the next ranges carry, None for none. It is told here, and not taken from a range around
    the whole backward pass, because that of a device runs in another thread than the one that calls it.
    The hooks are on tensors: those on modules add nodes to the graph, and schedules that part backward fail on them.
    """

    def __init__(self, blocks: Iterable[tuple[str, nn.Module]]) -> None:
        self.microbatch: int | None = None
        self._open: tuple[str, Annotation] | None = None
        for name, block in blocks:
            self._mark(f"blocks.{name}", block)

    def _mark(self, layer: str, block: nn.Module) -> None:
        def begin(_grad: Tensor) -> None:
            self.close()
            opened = dtprof.annotate("block backward", phase="backward", microbatch=self.microbatch, layer=layer)
            self._open = layer, opened
            opened.__enter__()

        def end(_grad: Tensor) -> None:
            # the input is the output of the block before, which has begun by now
            if self._open is not None and self._open[0] == layer:
                self.close()

        def after_forward(_block: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if inputs[0].requires_grad and output.requires_grad:
                inputs[0].register_hook(end)
                output.register_hook(begin)

        block.register_forward_hook(after_forward)

    def close(self) -> None:
        """End the range that is open, at the end of a pass: one for the weights alone ends in no block's input."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].__exit__(None, None, None)

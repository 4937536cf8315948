"""Seconds of the passes of one micro-batch, part by part."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Passes:
    """Seconds of one micro-batch on one rank, all its passes together, by what they are spent on.

    ``products``, ``attention``, ``elementwise``, ``loss`` (all that is done on logits), ``recompute``: first done twice;
    ``launch``: waiting for kernels to be launched; ``tp``, ``cp``, ``ep``: exposed communication; ``forward``: share of the
    forward pass.
    """

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    loss: float = 0.0
    recompute: float = 0.0
    launch: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(getattr(self, name) for name in PARTS))

    @property
    def compute(self) -> float:
        """All but communication."""
        return self.total - self.tp - self.cp - self.ep

    def times(self, count: float) -> Passes:
        """``count`` of the same."""
        return Passes(*(count * getattr(self, name) for name in PARTS))

    def plus(self, other: Passes) -> Passes:
        """Both, one after the other."""
        return Passes(*(getattr(self, name) + getattr(other, name) for name in PARTS))


PARTS = tuple(field.name for field in fields(Passes))

"""What one rank's memory holds at its peak, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields

GIB = 2**30
# what an allocator reserves beyond what is allocated, over what is allocated
FRAGMENTATION = 0.10


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a rank of pipeline ``stage`` (counted from 0).

    ``parameters``, ``gradients``, ``optimizer`` (its master weights and moments): what stays all the time; ``activations``:
    kept for the backward pass by all micro-batches in flight; ``transient``: what is there only while one layer or the loss is
    computed (recomputed activations, logits, their gradients); ``communication``: gathered parameters, gradients on their way,
    exchanged tokens; ``context``: outside of the allocator (driver, communicators); ``host``: in the host's memory, by
    offloading.
    """

    stage: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    transient: int
    communication: int
    context: int
    host: int = 0

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer states."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def allocated(self) -> int:
        """What is allocated at the peak, as torch.cuda.max_memory_allocated counts."""
        return self.states + self.activations + self.transient + self.communication

    @property
    def fragmentation(self) -> int:
        """What the allocator holds besides: FRAGMENTATION of what is allocated, an allowance."""
        return round(FRAGMENTATION * self.allocated)

    @property
    def reserved(self) -> int:
        """What the allocator takes from the device, as torch.cuda.max_memory_reserved counts: the published peaks."""
        return self.allocated + self.fragmentation

    @property
    def device(self) -> int:
        """All that the device must hold."""
        return self.reserved + self.context

    def document(self) -> dict[str, int]:
        """As a JSON object: bytes by part, and the sums."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        sums = ("allocated", "fragmentation", "reserved", "device")
        return {f"{k}_bytes" if k != "stage" else k: v for k, v in {**parts, **{s: getattr(self, s) for s in sums}}.items()}

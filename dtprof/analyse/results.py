"""What the basic analyses return: plain values with units in their names, drawn by every output.

``study.result("accounting")`` is an ``AccountingResult``, ``"comm"`` a ``CommResult``, ``"kernels"`` a ``KernelResult``,
``"phases"`` a ``PhaseResult``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dtprof.table import Table

# the order of the budget, everywhere
ACCOUNTING = (
    "compute_ns", "copy_exposed_ns", "comm_wait_ns", "comm_transfer_ns", "comm_unsplit_ns",
    "idle_host_ns", "idle_dependency_ns", "idle_input_ns", "idle_checkpoint_ns", "idle_other_ns",
)  # fmt: skip


@dataclass(frozen=True)
class StepAccount:
    """One step of one part. ``accounting`` has the ten keys of ACCOUNTING and sums to ``dur_ns`` exactly.

    ``message_wait_ns``: what of ``comm_wait_ns`` is for a message of another rank, and not for a rank late to an operation of
    all.
    """

    step: int
    ts: int
    dur_ns: int
    complete: bool
    on_device: bool
    accounting: dict[str, int]
    comm_hidden_ns: int
    copy_hidden_ns: int
    recompute_ns: int | None
    kind: str = "train"
    marked: str = "marked"
    message_wait_ns: int = 0


@dataclass(frozen=True)
class DeviceTotals:
    """Unions over the whole file, device spans only (all zero on a CPU job)."""

    span_ns: int
    busy_ns: int
    idle_ns: int
    compute_ns: int
    comm_ns: int
    copy_ns: int
    comm_overlapped_by_compute_ns: int
    exposed_comm_ns: int
    comm_kernels: int


@dataclass(frozen=True)
class HostTotals:
    """Unions over the whole file on the host: training and autograd threads compute, gloo threads communicate."""

    span_ns: int
    compute_ns: int
    comm_ns: int
    comm_overlapped_by_compute_ns: int
    exposed_comm_ns: int


@dataclass(frozen=True)
class PartAccount:
    """One part (process, or capture window of one)."""

    part: int
    rank: int | None
    device: DeviceTotals
    host: HostTotals
    steps: tuple[StepAccount, ...]
    # why idle and step numbers of this part must not be trusted ("" where they may)
    unreliable: str = ""


@dataclass(frozen=True)
class AccountingResult:
    """Accounting of every part."""

    parts: tuple[PartAccount, ...]
    on_device: bool

    def mean_shares(self) -> dict[str, float]:
        """Share of each accounting key in the step: mean over the parts of their mean time, by the mean step."""
        sums = dict.fromkeys(ACCOUNTING, 0.0)
        whole = 0.0
        for part in self.parts:
            if steps := settled(part.steps):
                whole += sum(s.dur_ns for s in steps) / len(steps)
                for key in ACCOUNTING:
                    sums[key] += sum(s.accounting[key] for s in steps) / len(steps)
        return {key: value / whole if whole else 0.0 for key, value in sums.items()}


def settled(steps: tuple[StepAccount, ...]) -> tuple[StepAccount, ...]:
    """Complete training steps where there are any, else complete ones, else all."""
    train = tuple(s for s in steps if s.complete and s.kind == "train")
    return train or tuple(s for s in steps if s.complete) or steps


@dataclass(frozen=True)
class Operation:
    """One collective over its ranks, ready to draw; ``None`` where not known."""

    id: int
    op: str
    group: str
    seq: int | None
    n: int | None
    n_present: int
    bytes: int | None
    bytes_known: str
    first_start_ns: int
    end_ns: int
    transfer_ns: int | None
    transfer_upper_ns: int | None
    wait_ns: dict[int, int | None]
    dur_ns: dict[int, int]
    last_rank: int | None
    last_by_ns: int | None
    start_skew_ns: int
    end_skew_ns: int
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    matched_by: str
    one_sided: bool
    capture_start: bool
    step: int | None
    label: str
    events: dict[int, int] = field(default_factory=dict)

    @property
    def last_ranks(self) -> tuple[int, ...]:
        """Ranks that wait for nobody: one, or several that arrive at one instant; none where waits are not known."""
        return tuple(rank for rank, wait in self.wait_ns.items() if wait == 0)


@dataclass(frozen=True)
class CommResult:
    """All communication of the run."""

    operations: tuple[Operation, ...]
    collectives: Table
    participations: Table
    # part ordinal -> share of communication time without a known group
    ungrouped_share: dict[int, float]
    backend: str | None


@dataclass(frozen=True)
class KernelRow:
    """Kernels of one name on all ranks."""

    name: str
    kind: Literal[
        "gemm", "attention", "normalization", "elementwise", "reduction", "optimizer", "communication", "copy", "other"
    ]
    count: int
    total_ns: int
    median_ns: int
    share: float
    parts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelResult:
    """Kernel table, by total time; ``classes`` is class -> total ns; of the ``kernels`` that do not communicate ``short`` are
    shorter than a launch usually takes.
    """

    rows: tuple[KernelRow, ...]
    classes: dict[str, int]
    launches_without_kernel: dict[int, int]
    kernels_without_launch: dict[int, int]
    short: int
    kernels: int

    @property
    def short_share(self) -> float | None:
        """Share of the short ones; None where there is no kernel."""
        return self.short / self.kernels if self.kernels else None


@dataclass(frozen=True)
class PhaseTime:
    """Own time of one phase of one step of one part: communication inside it is taken out."""

    part: int
    rank: int | None
    step: int
    phase: str
    ts: int
    dur_ns: int
    comm_ns: int

    @property
    def own_ns(self) -> int:
        """Duration without the communication inside."""
        return self.dur_ns - self.comm_ns


@dataclass(frozen=True)
class PhaseResult:
    """Phases of all parts (data, forward, backward, optimizer), from ranges; empty where nothing is marked."""

    times: tuple[PhaseTime, ...]

"""What the diagnosis benchmark runs: settings of the sample jobs, the faults planted in them, and what is true of each.

A setting is a job with its options; healthy, it is its own reference. Compute is emulated, so that ranks need few cores. The
truth of a fault in seconds per step is stated where the fault itself says it (docs/jobs.md), and measured against the healthy
runs of the same setting where it does not (``MEASURED``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from dtprof_sample_jobs.common.faults import CHECKPOINT_EVERY, KINDS, Fault, fault

STEPS = ("--steps", "48", "--capture", "5:20")
# memory is read twice a second, and growth is judged from 20 readings on
LONGER = 400
# sockets are read five times a second; where both ways look alike, it takes some 60 readings to tell them apart
OFTEN = ("--steps", "96")
SHORTER = ("--steps", "36", "--capture", "5:13")
MEASURED = "measured"
EXPERTS = 8
Truth = float | str | None


@dataclass(frozen=True)
class Layers:
    """An emulated model: equal layers, times in ms per call, bytes of each tensor, bytes between layers per sequence."""

    repeat: int
    forward_ms: float
    backward_ms: float
    tensors: tuple[int, ...]
    width_bytes: int = 4096

    def toml(self) -> str:
        """As ``--emulate`` reads it."""
        return (
            f'width_bytes = {self.width_bytes}\n[[layers]]\nname = "block"\nrepeat = {self.repeat}\n'
            f"forward_ms = {self.forward_ms}\nbackward_ms = {self.backward_ms}\ntensors = {list(self.tensors)}\n"
        )


@dataclass(frozen=True)
class Setting:
    """A job with its options. ``passes``: forward passes of a rank per step. ``true``: rules of high and medium findings that
    are true of it without any fault. ``more``: options that a kind of fault needs here.
    """

    job: str
    ranks: int
    words: tuple[str, ...] = ()
    layers: Layers | None = None
    lab: str | None = None
    passes: int = 1
    faults: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    true: tuple[str, ...] = ()
    more: dict[str, tuple[str, ...]] = field(default_factory=dict)


# gloo reduces while the host waits, so that nothing hides it
SYNCHRONOUS = ("overlap.fsdp_exposed",)
SMALL = Layers(6, 2.0, 4.0, (65536, 4096))
STAGES = Layers(2, 4.0, 8.0, (262144,), width_bytes=16384)
HEAVY = Layers(6, 2.0, 4.0, (262144,))
CORPUS, CLIPPED, FP16 = ("--data", "corpus"), ("--precision", "fp16", "--clip", "1"), ("--precision", "fp16")
SCALED = {"clip_before_unscale": CLIPPED, "fp16_overflow": FP16}
TINY = ("--layers", "2", "--dim", "64", "--seq", "32", "--optimizer", "sgd")
WORK = (
    "slow_rank=1:20ms", "slow_backward=1:20ms", "slow_data=1:20ms", "slow_host=1:20ms", "gc=1:20ms", "barrier_every_step=all",
    "checkpoint_stall=1:60ms", "late_collective=1:20ms", "memory_creep=1:2", "epoch_not_set=all",
)  # fmt: skip
# the first stage ends a step last, so that what comes late there is hidden by nothing
STAGED = (
    "slow_rank=1:4ms", "slow_backward=1:4ms", "slow_data=0:4ms", "slow_host=1:4ms", "gc=1:4ms", "barrier_every_step=all",
    "checkpoint_stall=0:60ms", "late_collective=0:30ms", "memory_creep=1:2", "epoch_not_set=all",
)  # fmt: skip
SCALES = ("clip_before_unscale=all", "fp16_overflow=all:6")
SLOW_LINK = "slow_link=1:200mbit"

SETTINGS = {
    "ddp": Setting(
        "ddp", 2, (), SMALL,
        faults=(*WORK, "find_unused=all", "out_of_data=1:8", *SCALES),
        pairs=(
            ("slow_rank=1:20ms", "slow_data=0:15ms"), ("slow_backward=1:20ms", "memory_creep=0:2"),
            ("checkpoint_stall=0:60ms", "slow_rank=1:15ms"), ("barrier_every_step=all", "slow_host=1:20ms"),
            ("find_unused=all", "slow_data=1:20ms"), ("late_collective=0:20ms", "gc=1:20ms"),
            ("slow_rank=1:20ms", "fp16_overflow=all:6"), ("memory_creep=1:2", "slow_data=1:20ms"),
        ),
        true=("ddp.buckets",),
        more={**SCALED, "epoch_not_set": (*CORPUS, "--batch", "16"), "slow_rank+fp16_overflow": FP16},
    ),
    "ddp_lab": Setting(
        "ddp", 2, ("--bucket-cap-mb", "0.6"), Layers(6, 2.0, 4.0, (65536,) * 4), lab="rate=1gbit,rtt=2ms",
        faults=("tiny_buckets=all:0.05", SLOW_LINK),
        pairs=((SLOW_LINK, "slow_rank=0:20ms"), ("tiny_buckets=all:0.05", "slow_rank=1:20ms")),
        true=("ddp.buckets", "comm.exposed"),
    ),
    "ddp_accumulate": Setting(
        "ddp", 2, ("--accumulate", "3"), Layers(4, 2.0, 4.0, (262144,)), lab="rate=1gbit,rtt=2ms", passes=3,
        faults=("no_sync_forgotten=all", "no_sync_backward_only=all"),
        pairs=(("no_sync_forgotten=all", "slow_rank=1:8ms"),),
        true=("ddp.buckets", "comm.exposed"),
    ),
    "fsdp": Setting(
        "fsdp", 2, ("--async-gathers", "--forward-prefetch", "1"), SMALL, faults=WORK, true=SYNCHRONOUS,
        pairs=(("slow_rank=1:20ms", "memory_creep=1:2"), ("slow_data=1:20ms", "checkpoint_stall=1:60ms")),
        more={"epoch_not_set": (*CORPUS, "--batch", "16")},
    ),
    "fsdp_zero2": Setting(
        "fsdp", 2, ("--strategy", "zero2", "--async-gathers"), SMALL, faults=("slow_rank=1:20ms",), true=SYNCHRONOUS
    ),
    "fsdp_hsdp": Setting(
        "fsdp", 4, ("--strategy", "hsdp", "--async-gathers"), SMALL, faults=("slow_backward=2:20ms",), true=SYNCHRONOUS
    ),
    "fsdp_lab": Setting(
        "fsdp", 2, ("--async-gathers", "--forward-prefetch", "1"), HEAVY, lab="rate=1gbit", faults=(SLOW_LINK,),
        true=SYNCHRONOUS, more={"slow_link": OFTEN},
    ),
    "pipeline": Setting(
        "pipeline", 2, (), STAGES, passes=8,
        faults=(*STAGED, "stage_imbalance=1:4ms", "few_microbatches=all:2", *SCALES),
        pairs=(
            ("stage_imbalance=1:4ms", "checkpoint_stall=0:60ms"), ("stage_imbalance=0:4ms", "memory_creep=1:2"),
            ("few_microbatches=all:2", "slow_data=0:15ms"),
        ),
        more={**SCALED, "epoch_not_set": CORPUS},
    ),
    "pipeline4": Setting(
        "pipeline", 4, ("--schedule", "gpipe"), Layers(4, 4.0, 8.0, (65536,)), passes=8, true=("pipeline.microbatches",),
        faults=("stage_imbalance=2:4ms", "few_microbatches=all:4"),
    ),
    "pipeline_interleaved": Setting(
        "pipeline", 2, ("--schedule", "interleaved"), Layers(4, 4.0, 8.0, (65536,)), passes=8,
        faults=("stage_imbalance=3:4ms",),
    ),
    "pipeline_lab": Setting(
        "pipeline", 2, (), Layers(2, 4.0, 8.0, (65536,), width_bytes=65536), lab="rate=1gbit", passes=8, faults=(SLOW_LINK,)
    ),
    "tensor_parallel": Setting(
        "tensor_parallel", 2, (*TINY, "--block-ms", "15"), faults=WORK,
        pairs=(("slow_rank=1:20ms", "slow_data=0:15ms"), ("barrier_every_step=all", "slow_backward=0:20ms")),
        more={"epoch_not_set": (*CORPUS, "--batch", "64")},
    ),
    "tensor_parallel_lab": Setting(
        "tensor_parallel", 2, (*TINY, "--batch", "32", "--block-ms", "15"), lab="rate=1gbit", faults=(SLOW_LINK,)
    ),
    "context_parallel": Setting(
        "context_parallel", 2, (*TINY, "--block-ms", "20"), true=("ddp.buckets",),
        faults=(*WORK, "unbalanced_split=all", *SCALES),
        pairs=(("unbalanced_split=all", "slow_data=0:20ms"), ("slow_host=0:20ms", "memory_creep=1:2")),
        more={**SCALED, "epoch_not_set": (*CORPUS, "--batch", "64")},
    ),
    "context_parallel_lab": Setting(
        "context_parallel", 2, (*TINY, "--batch", "64", "--block-ms", "20"), lab="rate=1gbit", faults=(SLOW_LINK,),
        true=("ddp.buckets",),
    ),
    "hybrid": Setting(
        "hybrid", 4, (*TINY, "--dp", "1", "--block-ms", "20", "--microbatches", "4", *SHORTER), passes=4,
        true=("pipeline.microbatches",),
        faults=(
            "slow_rank=3:40ms", "slow_backward=3:40ms", "slow_data=0:40ms", "slow_host=3:40ms", "gc=3:40ms",
            "barrier_every_step=all", "checkpoint_stall=0:400ms", "late_collective=0:200ms", "memory_creep=1:2",
            "epoch_not_set=all", "stage_imbalance=1:40ms",
        ),
        pairs=(("stage_imbalance=1:40ms", "memory_creep=1:2"),),
        more={"epoch_not_set": (*CORPUS, "--batch", "16")},
    ),
    "hybrid_flat": Setting(
        "hybrid", 4, (*TINY, "--pp", "1", "--block-ms", "8", *SHORTER), passes=4, faults=("slow_rank=2:40ms",)
    ),
    "hybrid_lab": Setting(
        "hybrid", 4, (*TINY, "--batch", "8", "--pp", "1", "--block-ms", "8", "--steps", "24"), passes=4,
        lab="hosts=2,rate=1gbit", faults=("tp_across_nodes=all", "slow_link=2:20mbit"),
    ),
    # routers of some seeds begin uneven: tokens are counted, and what is told of them is true
    "moe": Setting(
        "moe", 2, (*TINY, "--expert-us", "20"), true=("ddp.buckets", "moe.expert_balance"),
        faults=(*WORK, "router_skew=1:1", *SCALES),
        pairs=(("router_skew=1:1", "slow_data=1:20ms"), ("slow_rank=0:20ms", "checkpoint_stall=0:60ms")),
        more={**SCALED, "epoch_not_set": (*CORPUS, "--batch", "32", "--expert-us", "3")},
    ),
    "moe_capacity": Setting(
        "moe", 2, (*TINY, "--expert-us", "20", "--capacity-factor", "1.25"), true=("ddp.buckets", "moe.expert_balance"),
        faults=("router_skew=6:0.9",),
    ),
    "moe_lab": Setting(
        "moe", 2, (*TINY, "--batch", "16", "--expert-us", "5"), lab="rate=1gbit", faults=(SLOW_LINK,),
        true=("ddp.buckets", "moe.expert_balance"),
    ),
    "parameter_server": Setting(
        "parameter_server", 2, ("--mode", "sync"), SMALL, faults=WORK,
        pairs=(("slow_rank=1:20ms", "memory_creep=0:2"),),
        more={"epoch_not_set": (*CORPUS, "--batch", "16")},
    ),
    "parameter_server_async": Setting("parameter_server", 2, (), SMALL, faults=("slow_rank=1:20ms",)),
    "elastic": Setting(
        "elastic", 2, (), SMALL, true=("ddp.buckets", "checkpoint.stall"), faults=(*WORK, "kill=1:30", *SCALES),
        pairs=(("kill=1:30", "slow_rank=1:20ms"), ("slow_data=1:20ms", "gc=0:20ms")),
        more={**SCALED, "epoch_not_set": (*CORPUS, "--batch", "16")},
    ),
    "elastic_async": Setting(
        "elastic", 2, ("--save-mode", "async"), SMALL, true=("ddp.buckets",), faults=("checkpoint_gil=1:60ms",),
        pairs=(("checkpoint_gil=1:60ms", "slow_data=0:20ms"),),
    ),
}  # fmt: skip


def planted(text: str) -> Fault:
    """The fault that a text asks for."""
    return fault(text)


def options_of(setting: Setting, faults: tuple[str, ...]) -> tuple[str, ...]:
    """Options that these faults need besides, and the faults themselves."""
    kinds = [text.partition("=")[0] for text in faults]
    needed = setting.more.get("+".join(kinds), ()) or tuple(word for kind in kinds for word in setting.more.get(kind, ()))
    if "memory_creep" in kinds:
        needed += ("--steps", str(LONGER if setting.passes == 1 else LONGER // 3))
    return (*needed, *(word for text in faults for word in ("--inject", text)))


PER_PASS = ("slow_rank", "slow_backward", "slow_host", "stage_imbalance")
# not among them: a garbage collection takes as long as it takes, and how uneven a router is without the fault is chance
BY_MEASURE = (
    "tiny_buckets", "no_sync_forgotten", "no_sync_backward_only", "tp_across_nodes", "slow_link",
)  # fmt: skip


def truth_of(setting: Setting, text: str, beside: tuple[str, ...] = ()) -> Truth:
    """What a fault costs, s per step, where it is stated; ``MEASURED`` where the healthy runs tell, None where nothing does.

    Of the faults ``beside`` it few micro-batches are fewer passes.
    """
    it = planted(text)
    fewer = [other.rpartition(":")[2] for other in beside if planted(other).kind == "few_microbatches"]
    passes = int(fewer[0]) if fewer else setting.passes
    if it.kind in PER_PASS:
        return it.ns / 1e9 * passes
    if it.kind == "slow_data":
        batches = passes if setting.job in ("pipeline", "hybrid") else 1
        return it.ns / 1e9 * batches
    if it.kind == "late_collective":
        return it.ns / 1e9
    if it.kind in ("checkpoint_stall", "checkpoint_gil"):
        return it.ns / 1e9 / CHECKPOINT_EVERY
    if it.kind == "few_microbatches" and setting.layers is not None:
        stage = (setting.layers.forward_ms + setting.layers.backward_ms) * setting.layers.repeat / setting.ranks
        return (setting.ranks - 1) * stage / 1e3
    if it.kind == "unbalanced_split":
        words = dict(pairwise(setting.words))
        whole = float(words["--block-ms"]) * 3 * int(words["--layers"]) / 1e3
        return whole / setting.ranks * (setting.ranks - 1) / setting.ranks
    return MEASURED if it.kind in BY_MEASURE else None


@dataclass(frozen=True)
class Expected:
    """What names a fault: rules, best first, and words that title or evidence must have; ``follows``: rules whose findings are
    then true as well, since they tell a consequence.
    """

    rules: tuple[str, ...]
    words: str = ""
    follows: tuple[str, ...] = ("comm.waiting",)


# a rank with a pipeline stage of its own cannot be told from its stage
SLOW = ("straggler.compute_rank", "straggler.host_rank", "straggler.slow_worker", "pipeline.imbalance")
NAMES: dict[str, Expected] = {
    "slow_rank": Expected(SLOW),
    "slow_backward": Expected(SLOW),
    "slow_data": Expected(("input.stall",)),
    "slow_host": Expected(SLOW),
    "gc": Expected(("host.gc", *SLOW)),
    "barrier_every_step": Expected(("comm.barrier",)),
    "checkpoint_stall": Expected(("checkpoint.stall",)),
    "late_collective": Expected(("straggler.late_entry", *SLOW, "comm.waiting")),
    "tiny_buckets": Expected(("ddp.bucket_size", "ddp.buckets", "comm.small_messages"), follows=("comm.exposed",)),
    "find_unused": Expected(("ddp.find_unused_parameters",)),
    "no_sync_forgotten": Expected(("ddp.no_sync",), follows=("comm.exposed",)),
    "no_sync_backward_only": Expected(("ddp.no_sync",), follows=("comm.exposed",)),
    "stage_imbalance": Expected(("pipeline.imbalance",), "stage {where}"),
    # another schedule fills the bubble that few micro-batches leave
    "few_microbatches": Expected(("pipeline.microbatches",), follows=("comm.waiting", "pipeline.schedule")),
    "kill": Expected(("training.restart", "checkpoint.interval")),
    "checkpoint_gil": Expected(("checkpoint.saving_thread",)),
    "memory_creep": Expected(("memory.creep",), follows=()),
    "out_of_data": Expected(("ddp.join", "input.uneven"), follows=("input.uneven",)),
    "epoch_not_set": Expected(("training.sampler_epoch",)),
    "clip_before_unscale": Expected(("training.clip_order",)),
    "fp16_overflow": Expected(("training.scaler_skips",)),
    "router_skew": Expected(
        ("moe.expert_balance",), "expert {where}", follows=("comm.waiting", "straggler.compute_rank", "moe.capacity")
    ),
    "unbalanced_split": Expected(("cp.unbalanced_split",)),
    "tp_across_nodes": Expected(("tp.across_nodes",)),
    "slow_link": Expected(
        ("comm.slow_link",), follows=("comm.waiting", "comm.exposed", "cp.ring_overlap", "overlap.fsdp_exposed")
    ),
}
assert set(NAMES) == set(KINDS)


def places_of(setting: Setting, it: Fault) -> tuple[tuple[int, ...], ...] | None:
    """Culprits that are right for a fault, any of them; None for a fault of all ranks."""
    if it.where is None:
        return ((setting.ranks - 1,),) if it.kind == "unbalanced_split" else None
    if it.kind == "router_skew":
        return ((it.where * setting.ranks // EXPERTS,),)
    if it.kind == "stage_imbalance":
        return (stage_ranks(setting, it.where),)
    if it.kind == "slow_link" and setting.lab is not None and "hosts=2" in setting.lab:
        half = setting.ranks // 2
        host = tuple(range(half)) if it.where < half else tuple(range(half, setting.ranks))
        return ((it.where,), host)
    return ((it.where,),)


def stage_ranks(setting: Setting, stage: int) -> tuple[int, ...]:
    """Ranks that hold a pipeline stage: interleaved has stage s on rank s modulo the ranks, hybrid two ranks of tp on each."""
    if setting.job == "hybrid":
        return (2 * stage, 2 * stage + 1)
    return (stage % setting.ranks,)

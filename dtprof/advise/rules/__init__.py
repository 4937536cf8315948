"""The rules: one small class each, with evidence, price, and when it abstains. docs/rules.md has a paragraph for each."""

from __future__ import annotations

from dtprof.advise.rules.across_nodes import AcrossNodes, ExpertsAcrossNodes, TensorAcrossNodes
from dtprof.advise.rules.buckets import BucketSize, Compression
from dtprof.advise.rules.checkpoint import SavingThread
from dtprof.advise.rules.comm import Exposed, Waiting
from dtprof.advise.rules.comm_bandwidth import Bandwidth
from dtprof.advise.rules.comm_link import SlowLink
from dtprof.advise.rules.comm_misuse import Barrier, GlooOnCuda
from dtprof.advise.rules.comm_small import SmallMessages
from dtprof.advise.rules.compiling import GraphBreaks, Recompiles
from dtprof.advise.rules.compute import FusedAttention, Precision, SmallKernels, Unfused
from dtprof.advise.rules.cores import NoCore
from dtprof.advise.rules.ddp import Buckets, FindUnusedParameters
from dtprof.advise.rules.ddp_flags import BucketView, DataParallelUsed, Joined, StaticGraph
from dtprof.advise.rules.ddp_sync import NoSync
from dtprof.advise.rules.fsdp import ExposedUnits
from dtprof.advise.rules.goodput import CheckpointInterval, CheckpointStall, RestartCost
from dtprof.advise.rules.gpu import Ecc, NvLink, Throttling
from dtprof.advise.rules.hang import Mismatched, MissingRank
from dtprof.advise.rules.host import LaunchBound
from dtprof.advise.rules.host_waits import GarbageCollection, Synchronising
from dtprof.advise.rules.hsdp import SerialGroups
from dtprof.advise.rules.input import InputStall, Pinning, Uneven
from dtprof.advise.rules.layout import Bubble, Faster, LessRecomputation, LowerStage, WideTensor
from dtprof.advise.rules.memory import Creep, Fragmentation
from dtprof.advise.rules.memory_options import Checkpointing, Offload, ZeroStage
from dtprof.advise.rules.mfu import LowMfu
from dtprof.advise.rules.moe import Capacity, ExpertBalance
from dtprof.advise.rules.overlap import FsdpPrefetch, Reshard, WrapSize
from dtprof.advise.rules.parallel import RingOverlap, UnbalancedSplit
from dtprof.advise.rules.pipeline import Imbalance, MicroBatches, Schedule, Untagged
from dtprof.advise.rules.sequence import SequenceParallel
from dtprof.advise.rules.straggler import ComputeRank, HostRank, LateEntry
from dtprof.advise.rules.straggler_time import GrowingRank, RotatingRanks
from dtprof.advise.rules.straggler_worker import SlowWorker
from dtprof.advise.rules.training import ClipOrder, LrScaling, NoiseScale, SamplerEpoch, ScalerSkips
from dtprof.protocols import Rule

RULES: tuple[Rule, ...] = (
    MissingRank(),
    Mismatched(),
    ComputeRank(),
    HostRank(),
    LateEntry(),
    GrowingRank(),
    RotatingRanks(),
    SlowWorker(),
    Waiting(),
    Exposed(),
    Bandwidth(),
    SmallMessages(),
    Barrier(),
    GlooOnCuda(),
    SlowLink(),
    InputStall(),
    Pinning(),
    Uneven(),
    LaunchBound(),
    Synchronising(),
    GarbageCollection(),
    NoCore(),
    Precision(),
    FusedAttention(),
    SmallKernels(),
    Unfused(),
    Recompiles(),
    GraphBreaks(),
    LowMfu(),
    Fragmentation(),
    Creep(),
    Checkpointing(),
    Offload(),
    ZeroStage(),
    SavingThread(),
    CheckpointStall(),
    CheckpointInterval(),
    RestartCost(),
    SamplerEpoch(),
    ClipOrder(),
    ScalerSkips(),
    NoiseScale(),
    LrScaling(),
    Throttling(),
    Ecc(),
    NvLink(),
    FindUnusedParameters(),
    NoSync(),
    StaticGraph(),
    BucketView(),
    DataParallelUsed(),
    Joined(),
    BucketSize(),
    Compression(),
    Buckets(),
    ExposedUnits(),
    FsdpPrefetch(),
    Reshard(),
    WrapSize(),
    MicroBatches(),
    Imbalance(),
    Schedule(),
    Untagged(),
    ExpertBalance(),
    Capacity(),
    ExpertsAcrossNodes(),
    TensorAcrossNodes(),
    AcrossNodes(),
    SequenceParallel(),
    UnbalancedSplit(),
    RingOverlap(),
    WideTensor(),
    Bubble(),
    LowerStage(),
    LessRecomputation(),
    Faster(),
    SerialGroups(),
)

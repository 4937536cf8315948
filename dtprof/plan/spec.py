"""What a plan is about: a model, a cluster, a layout of the one on the other, and the software that runs it.

Plain values; ``check`` says which constraint a layout breaks and the nearest value that would keep it. Sizes are in bytes,
bandwidths in GB/s (1e9 bytes) per direction. Words: Narayanan et al. 2021 (Megatron-LM), Rajbhandari et al. 2020 (ZeRO).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt
from typing import Literal, get_args

from dtprof.catalogue.hardware import Gpu

Positions = Literal["learned", "rotary", "alibi", "none"]
Recompute = Literal["none", "selective", "full"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"]
Optimizer = Literal["adam", "adam8bit", "adam-bf16", "lamb", "muon", "lion", "sgd"]
Offload = Literal["optimizer", "parameters", "activations"]
AttentionKind = Literal["unfused", "flash"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
AttentionGeneration = Literal["unfused", "fused-softmax", "flash-1", "flash-2", "flash-3", "cudnn"]
Products = Literal["2021", "2023", "2025", "internevo"]


@dataclass(frozen=True)
class Moe:
    """The experts of a mixture-of-experts model (DeepSeekMoE's words).

    ``experts``: routed experts of a layer; ``top_k``: how many of them a token visits; ``ffn``: inner size of one expert;
    ``shared``: experts of the same size that every token visits; ``dense_layers``: the first so many layers have an ordinary
    feed-forward part (of the model's ``ffn``); ``every``: of the others each so-manieth has experts;
    ``node_limit``: nodes at most among whose experts a token's are chosen (DeepSeek-V3, section 2.1.2), 0 for any.
    """

    experts: int
    top_k: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    every: int = 1
    node_limit: int = 0


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): ranks of the two compressions and sizes of a head's parts.

    ``q_rank``: 0 where queries are not compressed; ``nope_dim`` and ``rope_dim``: the parts of a query's or key's head without
    and with rotary positions; ``v_dim``: size of a value's head.
    """

    kv_rank: int
    q_rank: int = 0
    nope_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128


@dataclass(frozen=True)
class Model:
    """A transformer's dimensions.

    ``kv_heads``: heads of keys and values (``heads``: all; 1: multi-query); ``head_dim``: size of one head; ``ffn``: inner size
    of the feed-forward part; ``gated``: with a third matrix (SwiGLU); ``tied``: the embedding is the output matrix too;
    ``biases``: linear layers and norms have them; ``positions``: ``learned`` ones are ``max_positions`` x hidden parameters;
    ``causal``: a decoder (attention over the lower triangle), False for BERT; ``moe``, ``mla``: None for ordinary ones;
    ``source``: where the dimensions stand.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int
    head_dim: int
    gated: bool = False
    tied: bool = False
    biases: bool = False
    positions: Positions = "rotary"
    max_positions: int = 0
    causal: bool = True
    moe: Moe | None = None
    mla: Mla | None = None
    source: str = ""

    def has_experts(self, layer: int) -> bool:
        """Whether this layer, counted from 0, has experts."""
        if self.moe is None or layer < self.moe.dense_layers:
            return False
        return (layer - self.moe.dense_layers) % self.moe.every == self.moe.every - 1


@dataclass(frozen=True)
class Cluster:
    """The machines.

    ``gpu``: an entry of the hardware catalogue; ``gpus``: all of them; ``gpus_per_node``: how many share the fast links (72 in
    an NVL72 rack); ``memory_bytes``: of one GPU; ``intra_gb_s``: of one GPU to its node's others; ``inter_gb_s``: of one node
    to the others, all its ports together; ``rails``: ports of a node, each to its own switch (0: not known, one for each GPU
    up to eight); ``pod_gpus``: GPUs below one spine, 0 for all; ``pod_share``: bandwidth out of a pod over that inside it;
    ``clock``: what a power limit leaves of the catalogue's clock; ``host_memory_bytes``: of a node's host, 0 where not known.
    """

    gpu: Gpu = field(hash=False)
    gpus: int
    gpus_per_node: int
    memory_bytes: int
    intra_gb_s: float
    inter_gb_s: float
    rails: int = 0
    pod_gpus: int = 0
    pod_share: float = 1.0
    name: str = ""
    clock: float = 1.0
    host_memory_bytes: int = 0

    @property
    def nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.gpus // self.gpus_per_node)


@dataclass(frozen=True)
class Layout:
    """How the model lies on the GPUs: dp x tp x pp x cp of them.

    ``dp``: data-parallel copies; ``tp``: tensor, ``pp``: pipeline, ``cp``: context (sequence of attention) parallel sizes;
    ``vpp``: pipeline stages on each rank; ``ep``: ranks over which experts are spread, taken out of tp x cp x dp; ``etp``:
    tensor-parallel size inside an expert; ``sequence_parallel``: norms and dropout split over tp (Korthikanti et al. 2022);
    ``zero``: ZeRO stage (0 plain DDP, 1 optimizer, 2 and gradients, 3 and parameters: FSDP); ``shard``: ranks of dp x cp over
    which it shards (0: all; fewer: HSDP); ``micro_batch``: sequences of one pass of one dp rank; ``global_batch``: sequences of
    a step; ``seq``: tokens of a sequence; ``recompute``: activations kept and not (selective: the attention core is
    recomputed, section 5 of the same); ``offload``: what lives in host memory; ``precision``: of matrix products;
    ``gradient_dtype``: in which gradients are accumulated and reduced; ``attention``: whether scores exist in memory.
    """

    dp: int
    micro_batch: int
    global_batch: int
    seq: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero: int = 0
    shard: int = 0
    recompute: Recompute = "none"
    offload: tuple[Offload, ...] = ()
    precision: Precision = "bf16"
    optimizer: Optimizer = "adam"
    gradient_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    attention: AttentionKind = "flash"
    schedule: ScheduleName = "1f1b"

    @property
    def gpus(self) -> int:
        """All GPUs that it takes."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def microbatches(self) -> int:
        """Passes of one dp rank in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def shard_ranks(self) -> int:
        """Ranks over which model states are sharded: 1 without ZeRO."""
        return 1 if self.zero == 0 else self.shard or self.dp * self.cp

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch * self.seq


@dataclass(frozen=True)
class Software:
    """The generation of software whose constants count.

    ``compiled``: elementwise work is fused (torch.compile, or a framework's own); ``attention``: its kernel's generation;
    ``tp_pieces``: products and tensor-parallel communication take turns in tp pieces; ``dp_hidden``: share of data-parallel
    communication that is scheduled beside compute (what then does not fit under it is exposed all the same); ``fsdp``: 0 none,
    1 flat parameters, 2 per parameter; ``launch_bound``: kernels are launched one by one from Python (False with CUDA graphs);
    ``fused_loss``: the loss writes no logits in fp32; ``parallel_loss``: Megatron's vocabulary-parallel one, a kernel for each
    of its steps; ``products``: whose matrix products the constants were fitted on; ``gather_hidden``: ZeRO-1's parameters are
    gathered beside the next forward pass; ``messages_hidden``: with virtual stages messages between stages are sent beside
    compute; ``messages_split``: each rank of tp sends its part of them (Narayanan et al. 2021, section 4.1);
    ``loss_in_place``: the gradient of the logits takes their place, in their type (FlashAttention's cross entropy), which saves
    memory alone; ``sums_fused``: the product for a weight's gradient adds to the sum of micro-batches itself; ``bin_tokens``:
    an encoder's sequences are batched with others as long within so many tokens, 0 where all are padded to the longest.
    """

    name: str
    compiled: bool
    attention: AttentionGeneration
    tp_pieces: bool = False
    dp_hidden: float = 0.0
    fsdp: int = 0
    launch_bound: bool = True
    summary: str = ""
    fused_loss: bool = False
    parallel_loss: bool = False
    products: Products = "2023"
    gather_hidden: bool = False
    messages_hidden: bool = False
    messages_split: bool = False
    loss_in_place: bool = False
    sums_fused: bool = False
    bin_tokens: int = 0


@dataclass(frozen=True)
class Problem:
    """A constraint that a layout breaks: ``key`` of Layout (or Cluster), its ``value``, and the ``nearest`` that keeps it."""

    key: str
    value: object
    message: str
    nearest: object | None = None

    def __str__(self) -> str:
        mend = "" if self.nearest is None else f"; {self.key} = {self.nearest} would do"
        return f"{self.key} = {self.value}: {self.message}{mend}"


def nearest(value: int, allowed: list[int]) -> int | None:
    """The allowed number nearest to ``value`` by ratio, the smaller of two."""
    return min(allowed, key=lambda one: (max(one, value) / max(min(one, value), 1), one), default=None)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return small + [number // one for one in reversed(small) if one * one != number]


def check(model: Model, cluster: Cluster, layout: Layout) -> list[Problem]:
    """Every constraint that this layout breaks, memory apart; empty where it can be laid out so."""
    out = _sizes(layout)
    if out:
        return out
    out += [*_ranks(cluster, layout), *_batch(layout), *_tensor(model, layout), *_pipeline(model, layout)]
    out += [*_sequence(model, layout), *_experts(model, layout), *_precision(cluster, layout)]
    return out


def _sizes(layout: Layout) -> list[Problem]:
    keys = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "global_batch", "seq")
    low = [Problem(key, getattr(layout, key), "at least 1", 1) for key in keys if getattr(layout, key) < 1]
    if layout.zero not in range(4):
        low.append(Problem("zero", layout.zero, "ZeRO has stages 0 to 3", min(max(layout.zero, 0), 3)))
    words = {"recompute": Recompute, "precision": Precision, "optimizer": Optimizer, "attention": AttentionKind}
    for key, known in {**words, "schedule": ScheduleName}.items():
        if getattr(layout, key) not in get_args(known):
            low.append(Problem(key, getattr(layout, key), f"one of {', '.join(get_args(known))}"))
    return low


def _ranks(cluster: Cluster, layout: Layout) -> list[Problem]:
    out = []
    if layout.gpus != cluster.gpus:
        per_copy = layout.tp * layout.pp * layout.cp
        fits = cluster.gpus // per_copy if cluster.gpus % per_copy == 0 else None
        out.append(Problem("dp", layout.dp, f"dp x tp x pp x cp is {layout.gpus}, the cluster has {cluster.gpus} GPUs", fits))
    ranks = layout.dp * layout.cp
    if layout.shard and ranks % layout.shard:
        near = nearest(layout.shard, divisors(ranks))
        out.append(Problem("shard", layout.shard, f"must divide dp x cp = {ranks}", near))
    return out


def _batch(layout: Layout) -> list[Problem]:
    if layout.global_batch % (layout.dp * layout.micro_batch) == 0:
        return []
    if layout.global_batch % layout.dp == 0:
        near = nearest(layout.micro_batch, divisors(layout.global_batch // layout.dp))
        return [Problem("micro_batch", layout.micro_batch, f"must divide a rank's {layout.global_batch // layout.dp}", near)]
    per_pass = layout.dp * layout.micro_batch
    near = max(round(layout.global_batch / per_pass), 1) * per_pass
    return [Problem("global_batch", layout.global_batch, f"must be a multiple of dp x micro_batch = {per_pass}", near)]


def _tensor(model: Model, layout: Layout) -> list[Problem]:
    tp = layout.tp
    fine = [one for one in divisors(model.heads) if _heads_part(model, one) and model.ffn % one == 0]
    out = []
    if tp not in fine:
        what = f"must divide {model.heads} heads and an inner size of {model.ffn}, and go with {model.kv_heads} heads of keys"
        out.append(Problem("tp", tp, what, nearest(tp, fine)))
    if layout.sequence_parallel and tp > 1 and layout.seq // layout.cp % tp:
        out.append(Problem("seq", layout.seq, f"sequence parallelism splits it over cp x tp = {layout.cp * tp}",
                           -(-layout.seq // (layout.cp * tp)) * layout.cp * tp))  # fmt: skip
    return out


def _heads_part(model: Model, tp: int) -> bool:
    """Heads of keys are parted over tp, or each is on several ranks."""
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def _pipeline(model: Model, layout: Layout) -> list[Problem]:
    out = []
    chunks = layout.pp * layout.vpp
    if layout.vpp > 1 and layout.pp == 1:
        out.append(Problem("vpp", layout.vpp, "virtual stages need a pipeline, pp > 1", 1))
    elif chunks > model.layers:
        key, other = ("vpp", layout.pp) if layout.vpp > 1 else ("pp", 1)
        most = max(model.layers // other, 1)
        out.append(Problem(key, getattr(layout, key), f"{chunks} stages, and the model has {model.layers} layers", most))
    if layout.vpp > 1 and layout.pp > 1 and layout.microbatches % layout.pp:
        per = layout.pp * layout.dp * layout.micro_batch
        what = f"virtual stages need a multiple of pp micro-batches, these are {layout.microbatches}"
        out.append(Problem("global_batch", layout.global_batch, what, -(-layout.global_batch // per) * per))
    return out


def _sequence(model: Model, layout: Layout) -> list[Problem]:
    out = []
    if layout.cp > 1 and layout.seq % (2 * layout.cp):
        # causal work is balanced by giving each rank an early and a late part
        part = 2 * layout.cp
        out.append(Problem("seq", layout.seq, f"must be a multiple of 2 x cp = {part}", -(-layout.seq // part) * part))
    if model.positions == "learned" and model.max_positions and layout.seq > model.max_positions:
        out.append(Problem("seq", layout.seq, f"{model.name} has {model.max_positions} positions", model.max_positions))
    return out


def _experts(model: Model, layout: Layout) -> list[Problem]:
    if model.moe is None:
        return [Problem("ep", layout.ep, f"{model.name} has no experts", 1)] if layout.ep > 1 else []
    ranks = layout.dp * layout.cp * layout.tp
    fine = [one for one in divisors(model.moe.experts) if ranks % (one * layout.etp) == 0]
    if layout.ep in fine:
        return []
    what = f"must divide {model.moe.experts} experts, and ep x etp dp x cp x tp = {ranks}"
    return [Problem("ep", layout.ep, what, nearest(layout.ep, fine))]


def _precision(cluster: Cluster, layout: Layout) -> list[Problem]:
    lacking = {"fp8": "fp8", "fp4": "fp8"}.get(layout.precision)
    if lacking and lacking not in cluster.gpu.tflops:
        return [Problem("precision", layout.precision, f"{cluster.gpu.name} has no {layout.precision} matrix products", "bf16")]
    if layout.precision == "bf16" and cluster.gpu.capability in (70, 75):
        return [Problem("precision", layout.precision, f"{cluster.gpu.name} has no bf16 matrix products", "fp16")]
    return []

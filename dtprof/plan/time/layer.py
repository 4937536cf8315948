"""One layer on one rank: its matrix products, attention, elementwise kernels, and what it says to its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dtprof.plan import sizes
from dtprof.plan.constants import CONTENTION, JOINING, Constants
from dtprof.plan.memory.states import GRADIENT_BYTES, element_bytes
from dtprof.plan.spec import Cluster, Layout, Model, Software
from dtprof.plan.time.kernels import FLASH_BACKWARD, Device
from dtprof.plan.time.passes import Passes
from dtprof.plan.time.wires import Wires, group

# elementwise traffic of a forward pass in eager mode, bytes per token of two-byte activations: norms, residual sums and dropout
# per hidden element; biases, rotary positions and copies of heads per hidden element that tp divides; activation function per
# inner element, plain and gated
_OUTSIDE, _HEADS, _PLAIN, _GATED = 24.0, 8.0, 4.0, 10.0
# of a hidden element of a routed token, in either pass: read and written when sorted by rank, again by expert, back twice
_ROUTED = 16.0
# backward over forward pass
_ELEMENTWISE_BACKWARD = 1.8
# short sequences are not worth bins
_UNBINNED = 2
# of the launches of forward and backward pass a forward pass has a third
_FORWARD_LAUNCHES = 1 / 3
# kernels of a layer with experts over those of an ordinary one, and of a compiled over an eager one
_EXPERT_LAUNCHES, _COMPILED_LAUNCHES = 2.0, 0.6
# kernels of an ordinary layer's passes; of each expert's: its products one by one, and what makes their operands in fewer bits
_LAUNCHES, _PRODUCTS, _QUANTIZING = 100, 6, 12


@dataclass(frozen=True)
class Setting:
    """Everything but the layout that a layer's time depends on."""

    model: Model
    cluster: Cluster
    software: Software
    constants: Constants
    device: Device
    wires: Wires


def layer(setting: Setting, layout: Layout, *, experts: bool) -> Passes:
    """Seconds of a layer, with experts or an ordinary one, for one micro-batch: forward, backward, and recomputed passes."""
    forward, backward = _Layer(setting, layout, experts).both()
    kept = _again(setting.software, layout, forward) * setting.constants.recompute
    work = sum(forward) + sum(backward) + kept
    launch = max(_launched(work, _floor(setting, layout, experts)) - work, 0.0)
    tp, cp, ep = _wires(setting, layout, experts, (forward[0], backward[0]), forward[1] + backward[1])
    return Passes(
        products=forward[0] + backward[0],
        attention=forward[1] + backward[1],
        elementwise=forward[2] + backward[2],
        recompute=kept,
        launch=launch,
        tp=tp,
        cp=cp,
        ep=ep,
    )


def tokens(setting: Setting, layout: Layout) -> float:
    """Tokens of a micro-batch on one rank."""
    return layout.micro_batch * layout.seq / layout.cp * binned(setting.model, setting.software, layout)[0]


def binned(model: Model, software: Software, layout: Layout) -> tuple[float, float]:
    """Shares of its longest sequence, and of that squared, that an encoder's sequences have: as many are in each bin.

    Half of the tokens of sequences of 512 would be padding (Krell et al. 2021, Efficient Sequence Packing).
    """
    bins = layout.seq // software.bin_tokens if software.bin_tokens else 0
    if model.causal or bins <= _UNBINNED:
        return 1.0, 1.0
    return (bins + 1) / (2 * bins), (bins + 1) * (2 * bins + 1) / (6 * bins * bins)


def summed(software: Software, layout: Layout) -> float:
    """Bytes more for each weight that the product for its gradient moves where it adds to the sum of all micro-batches."""
    if not software.sums_fused:
        return 0.0
    return 2 * GRADIENT_BYTES[layout.gradient_dtype] - element_bytes(layout.precision)


@dataclass(frozen=True)
class _Linear:
    """``count`` linear layers of ``rows`` tokens each; ``parted``: over the ranks of tp, with communication before or after."""

    count: float
    rows: float
    out: float
    inner: float
    parted: bool = False


class _Layer:
    """Work of one layer; all methods give seconds of (forward, backward) pass."""

    def __init__(self, setting: Setting, layout: Layout, experts: bool) -> None:
        self.model, self.device, self.layout = setting.model, setting.device, layout
        self.scores_bytes = setting.constants.scores
        self.experts = experts
        self.tokens = tokens(setting, layout)
        self.squares = binned(setting.model, setting.software, layout)[1]
        self.summed = summed(setting.software, layout)
        self.pieces = layout.tp if setting.software.tp_pieces else 1

    def both(self) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        products = [self._linear(shape) for shape in self._shapes()]
        attention, elementwise = self._attention(), self._elementwise()
        forward, backward = (sum(one[side] for one in products) for side in (0, 1))
        return (forward, attention[0], elementwise[0]), (backward, attention[1], elementwise[1])

    def _linear(self, one: _Linear) -> tuple[float, float]:
        device, out, inner = self.device, one.out, one.inner
        forward, backward = device.linear(one.rows, out, inner, summed=self.summed)
        forward += self._quantizing(one, inner, reads=1)
        backward += self._quantizing(one, out, reads=2)
        if one.parted:
            # weights are read once for each piece: in the forward pass, and where the gradient of the output is gathered
            again = (self.pieces - 1) * out * inner * device.element / device.memory
            forward += again
            backward += again if out == self.model.hidden else 0.0
        return one.count * forward, one.count * backward

    def _quantizing(self, one: _Linear, width: float, reads: int) -> float:
        """Of an operand; with sequence parallelism one of hidden size is gathered from the ranks of tp."""
        gathered = one.parted and self.layout.sequence_parallel and width == self.model.hidden
        return self.device.quantizing(one.rows * width, reads, self.layout.tp if gathered else 1)

    def _shapes(self) -> Iterator[_Linear]:
        yield from (_Linear(1, self.tokens, out, inner, True) for out, inner in self._attention_matrices())
        model, tp, moe = self.model, self.layout.tp, self.model.moe
        wide = 2 if model.gated else 1
        if not self.experts or moe is None:
            yield from self._feed_forward(1, self.tokens, wide, model.ffn / tp, parted=True)
            return
        yield _Linear(1, self.tokens, moe.experts, model.hidden)
        if moe.shared:
            yield from self._feed_forward(1, self.tokens, wide, moe.shared * moe.ffn / tp, parted=True)
        local = moe.experts / self.layout.ep
        routed = self.tokens * moe.top_k * self.layout.etp / tp
        yield from self._feed_forward(local, routed / local, wide, moe.ffn / self.layout.etp)

    def _feed_forward(self, count: float, rows: float, wide: int, inner: float, *, parted: bool = False) -> Iterator[_Linear]:
        yield _Linear(count, rows, wide * inner, self.model.hidden, parted)
        yield _Linear(count, rows, self.model.hidden, inner, parted)

    def _attention_matrices(self) -> list[tuple[float, float]]:
        """(outputs, inputs) on this rank. Compressions of latent attention are on every rank of tp."""
        model, tp = self.model, self.layout.tp
        if model.mla is None:
            queries = model.heads * model.head_dim / tp
            keys = max(model.kv_heads / tp, 1) * model.head_dim
            return [(queries + 2 * keys, model.hidden), (model.hidden, queries)]
        shapes = sizes.attention_matrices(model)
        whole = {(model.mla.q_rank, model.hidden), (model.mla.kv_rank + model.mla.rope_dim, model.hidden)}
        *ups, (out, inner) = shapes
        return [(o if (o, i) in whole else o / tp, i) for o, i in ups] + [(out, inner / tp)]

    def _attention(self) -> tuple[float, float]:
        model, layout = self.model, self.layout
        scores = layout.micro_batch * model.heads / layout.tp * layout.seq * layout.seq / layout.cp * self.squares
        mla = model.mla
        widths = 2 * model.head_dim if mla is None else mla.nope_dim + mla.rope_dim + mla.v_dim
        flops = 2.0 * scores * widths
        if layout.attention == "flash":
            # a rate by the whole square is that of half the work
            forward = flops / self.device.flash * (1 if model.causal else 2)
            return forward, FLASH_BACKWARD * forward
        size = element_bytes(layout.precision) / 2
        each = flops / self.device.high + size * self.scores_bytes * scores / self.device.memory / 3
        return each, 2 * each

    def _elementwise(self) -> tuple[float, float]:
        model, layout, moe = self.model, self.layout, self.model.moe
        act = _GATED if model.gated else _PLAIN
        outside = _OUTSIDE * model.hidden / (layout.tp if layout.sequence_parallel else 1)
        inside = _HEADS * model.heads * model.head_dim
        if self.experts and moe is not None:
            inside += act * moe.ffn * (moe.top_k + moe.shared)
        else:
            inside += act * model.ffn
        count = self.tokens * (outside + inside / layout.tp) * element_bytes(layout.precision) / 2
        forward = self.device.moved(count)
        routed = 0.0
        if self.experts and moe is not None:
            # no compiler fuses it
            size = element_bytes(layout.precision) / 2
            routed = _ROUTED * size * self.tokens * moe.top_k * model.hidden / layout.tp / self.device.memory
        return forward + routed, _ELEMENTWISE_BACKWARD * forward + routed


def _again(software: Software, layout: Layout, forward: tuple[float, float, float]) -> float:
    """Seconds of what is computed a second time, as fast as the first.

    ``selective`` is attention's core (Korthikanti et al. 2022, section 5) in Megatron; every other matrix product and all
    elementwise work with FSDP2's policy by operation; every other layer with that of FSDP by block.
    """
    products, attention, elementwise = forward
    if layout.recompute == "full":
        return sum(forward)
    if layout.recompute == "none":
        return 0.0
    if software.fsdp == 2:
        return products / 2 + elementwise
    return sum(forward) / 2 if software.fsdp == 1 else attention


def _floor(setting: Setting, layout: Layout, experts: bool) -> float:
    """Seconds that launching a layer's kernels takes at least.

    The host waits for the number of tokens of each expert, so that layers with experts are not launched by a graph.
    """
    if not setting.software.launch_bound and not experts:
        return 0.0
    moe = setting.model.moe
    more = 1.0
    if experts and moe is not None:
        each = _PRODUCTS + (_QUANTIZING if setting.device.quantized else 0)
        more = _EXPERT_LAUNCHES + each * moe.experts / layout.ep / _LAUNCHES
    fewer = _COMPILED_LAUNCHES if setting.software.compiled else 1.0
    passes = 1 + (_FORWARD_LAUNCHES if layout.recompute == "full" else 0.0)
    return setting.constants.launch_ms * 1e-3 * more * fewer * passes


def _launched(work: float, floor: float) -> float:
    return float((work**JOINING + floor**JOINING) ** (1 / JOINING))


def _tensor(setting: Setting, layout: Layout, sums: int, products: tuple[float, float]) -> float:
    """Exposed seconds of ``sums`` sums of tensor parallelism in each pass; ``products``: seconds of both passes."""
    ranks = group(layout.tp, 1, setting.cluster.gpus_per_node)
    again = 1 if layout.recompute == "full" else 0
    size = 2.0 * tokens(setting, layout) * setting.model.hidden
    half = setting.wires.time("all_gather", size, ranks)
    if setting.software.tp_pieces and layout.sequence_parallel:
        # forward inputs gathered and outputs scattered, backward gradients of outputs gathered, all between pieces of products:
        # the last piece that is scattered has none beside it. Beside the backward products whole: inputs gathered again, their
        # gradients scattered
        between = sums * half * (2 * (1 + again) + 1)
        room = products[0] * (1 + again) + products[1] / 2
        return sums * half * ((1 + again) / layout.tp + 2 * CONTENTION) + max(between - room, 0.0)
    each = setting.wires.time("all_reduce", size, ranks) + setting.constants.arrival_us * 1e-6
    # with sequence parallelism inputs are gathered again, beside the products for their gradients
    return sums * ((2 + again) * each + (CONTENTION * half if layout.sequence_parallel else 0.0))


def _wires(
    setting: Setting, layout: Layout, experts: bool, products: tuple[float, float], attention: float
) -> tuple[float, float, float]:
    """Exposed seconds of tensor, context and expert parallelism, all passes of a layer."""
    model, wires, node = setting.model, setting.wires, setting.cluster.gpus_per_node
    moe = model.moe
    size = 2.0 * tokens(setting, layout) * model.hidden
    passes = 3 if layout.recompute == "full" else 2
    # an all-reduce after attention, one after the feed-forward part; with sequence parallelism its two halves
    sums = 1 if experts and moe is not None and not moe.shared else 2
    tp = _tensor(setting, layout, sums, products) if layout.tp > 1 else 0.0
    cp = 0.0
    if layout.cp > 1:
        keys = 2.0 * 2 * max(model.kv_heads / layout.tp, 1) * model.head_dim * tokens(setting, layout) * layout.cp
        rings = wires.time("all_gather", keys, group(layout.cp, layout.tp, node))
        # keys and values go round once forward and, with their gradients, twice backward, beside attention's core
        whole = 3 * rings
        cp = max(whole - attention, 0.0) + CONTENTION * min(whole, attention)
    ep = 0.0
    if experts and moe is not None and layout.ep > 1:
        routed = size * moe.top_k * layout.etp / layout.tp
        ranks = group(layout.ep, layout.etp, node)
        if ranks.nodes > 1 and moe.node_limit:
            # once to each node, which passes it on
            routed *= min(moe.node_limit / moe.top_k, 1.0)
        # to the experts and back, forward and backward
        ep = 2 * passes * wires.time("all_to_all", routed, ranks)
    return tp, cp, ep

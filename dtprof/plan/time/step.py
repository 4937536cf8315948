"""The step: layers, ends, pipeline, synchronisation, optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dtprof.plan.constants import Constants
from dtprof.plan.memory.states import Held, held
from dtprof.plan.spec import Cluster, Layout, Model, Software
from dtprof.plan.stages import Stage, stages
from dtprof.plan.time import ends, sync
from dtprof.plan.time.kernels import Device, device
from dtprof.plan.time.layer import Setting, layer, tokens
from dtprof.plan.time.passes import Passes
from dtprof.plan.time.pipeline import step
from dtprof.plan.time.wires import Wires, group

# of forward and backward pass the latter takes two thirds, with a recomputed forward pass three quarters
_BACKWARD = {"none": 2 / 3, "selective": 2 / 3, "full": 3 / 4}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, by what the slowest rank spends them on.

    ``busy``: its micro-batches, part by part; ``bubble``: waiting in the pipeline; ``messages``: between stages; ``sync``:
    exposed summing of gradients and gathering of parameters; ``optimizer``.
    """

    busy: Passes
    bubble: float
    messages: float
    sync: float
    optimizer: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.busy.total + self.bubble + self.messages + self.sync + self.optimizer


@dataclass
class Estimator:
    """Step times of layouts of one model on one cluster; remembers what layouts have in common."""

    model: Model
    cluster: Cluster
    software: Software
    constants: Constants
    wires: Wires = field(init=False)
    _layers: dict[object, Passes] = field(init=False, default_factory=dict)
    _devices: dict[str, Device] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.wires = Wires(self.cluster, self.constants.network)

    def step(self, layout: Layout) -> StepTime:
        """Seconds of a step of this layout, whether it fits into memory or not."""
        setting = self._setting(layout)
        ranks = stages(self.model, layout)
        passes = [self._rank(setting, layout, stage) for stage in ranks]
        message = self._message(setting, layout)
        each = [one.total + message for one in passes]
        _, bubble = step(each, layout.microbatches, layout.schedule, layout.vpp)
        slow = max(range(len(each)), key=each.__getitem__)
        exposed, stepping = self._after(setting, layout, ranks[slow], passes[slow])
        count = layout.microbatches
        return StepTime(passes[slow].times(count), bubble, message * count, exposed, stepping)

    def _setting(self, layout: Layout) -> Setting:
        if layout.precision not in self._devices:
            self._devices[layout.precision] = device(self.cluster, layout.precision, self.software, self.constants)
        found = self._devices[layout.precision]
        return Setting(self.model, self.cluster, self.software, self.constants, found, self.wires)

    def _rank(self, setting: Setting, layout: Layout, stage: Stage) -> Passes:
        with_experts = sum(self.model.has_experts(one) for chunk in stage.chunks for one in chunk) if self.model.moe else 0
        out = Passes()
        if stage.layers > with_experts:
            out = out.plus(self._layer(setting, layout, False).times(stage.layers - with_experts))
        if with_experts:
            out = out.plus(self._layer(setting, layout, True).times(with_experts))
        if stage.first:
            out = out.plus(ends.first(setting, layout))
        return out.plus(ends.last(setting, layout)) if stage.last else out

    def _layer(self, setting: Setting, layout: Layout, experts: bool) -> Passes:
        # nothing else of a layout matters to a layer
        key = replace(layout, dp=1, pp=1, vpp=1, global_batch=1, zero=0, shard=0, offload=(), optimizer="adam",
                      schedule="1f1b"), experts  # fmt: skip
        if key not in self._layers:
            self._layers[key] = layer(setting, layout, experts=experts)
        return self._layers[key]

    def _message(self, setting: Setting, layout: Layout) -> float:
        """Exposed seconds of a micro-batch for sending activations on and gradients back."""
        if layout.pp < 2:
            return 0.0
        split = layout.sequence_parallel or self.software.messages_split
        size = 2.0 * tokens(setting, layout) * self.model.hidden / (layout.tp if split else 1)
        near = group(2, self.cluster.gpus // layout.pp, self.cluster.gpus_per_node)
        once = setting.wires.time("send_recv", size, near)
        return 0.0 if self.software.messages_hidden and layout.vpp > 1 else 2 * layout.vpp * once

    def _after(self, setting: Setting, layout: Layout, stage: Stage, passes: Passes) -> tuple[float, float]:
        mine: Held = held(self.model, layout, stage)
        backward = _BACKWARD[layout.recompute] * passes.total
        exposed = sync.communication(setting, layout, mine, stage.layers, passes.total, backward)
        return exposed, sync.optimizer(setting, layout, mine)

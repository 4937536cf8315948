"""Memory of every process: what it takes by category, the peak and whose it is, fragmentation, creep.

``study.result("memory")`` is a ``MemoryResult``. What cannot be told is None, and ``why`` says why. Parameters, gradients and
optimizer state are sums over the tensors of the model and its optimizers (exact); categories of allocator events are inferred
from the phase in which a block was made and freed (``memory_live``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dtprof.analyse.memory_creep import Creep, creep, settled
from dtprof.analyse.memory_live import Level, Live, level, live
from dtprof.intervals import Ints
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import MISSING, MISSING32

CATEGORIES = ("parameter", "gradient", "optimizer", "activation", "temporary", "communication", "input")
MOST_OWNERS = 12
_EVENTS = "the allocator's events were not recorded (torch_profiler's option profile_memory, or an allocator snapshot)"
_STATE = "the memory collector did not count it"
NO_SERIES = "memory was not read at every step"
_FROM_EVENTS = ("activation", "temporary", "gradient", "input")


@dataclass(frozen=True)
class Owner:
    """Bytes of one owner: ``name`` is a module, or a frame of a stack; None where it is not known."""

    name: str | None
    phase: str | None
    category: str | None
    bytes: int


@dataclass(frozen=True)
class Peak:
    """The most at once. ``basis``: "allocated" (of the device's allocator) or "resident" (of the process).

    ``exact`` is false where a higher one may lie before what was recorded; at least ``held_before`` was held then.
    ``owners`` are the largest, by what they held then where allocator events tell, else by what is known of their state.
    """

    bytes: int
    basis: str
    exact: bool
    ts: int | None = None
    step: int | None = None
    phase: str | None = None
    held_before: int | None = None
    owners: tuple[Owner, ...] = ()


@dataclass(frozen=True)
class Fragmentation:
    """Memory that the allocator holds and nobody uses, in bytes.

    ``free`` in blocks inside segments, ``held`` of it beside live blocks (it cannot be given back), ``pending`` waits for a
    stream, ``largest`` free block; ``share`` = free / reserved.
    """

    reserved: int
    allocated: int
    free: int
    share: float
    held: int | None = None
    pending: int | None = None
    largest: int | None = None


@dataclass(frozen=True)
class PartMemory:
    """One process. ``categories`` are peaks of each category; ``modules`` the owners of them, the largest first."""

    part: int
    rank: int | None
    categories: dict[str, int | None]
    modules: tuple[Owner, ...]
    peak: Peak | None
    fragmentation: Fragmentation | None
    creep: Creep | None
    # bytes asked for in vain; or how often that happened, where only a counter tells
    failed: tuple[int, ...] = ()
    failures: int = 0
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryResult:
    """Memory of all processes that have any data on it."""

    parts: tuple[PartMemory, ...]


def analyse(study: Lens) -> MemoryResult:
    """Memory of every part with data."""
    found = [_Part(study.run, p.ordinal, p.rank).result() for p in study.run.parts]
    return MemoryResult(tuple(p for p in found if p is not None))


class _Part:
    """One part under examination."""

    def __init__(self, run: Run, part: int, rank: int | None) -> None:
        self.part, self.rank = part, rank
        self.memory, self.allocations = run.table("memory", part), run.table("allocations", part)
        self.metrics, self.samples, self.steps = (run.table(t, part) for t in ("metrics", "samples", "steps"))
        self.why: dict[str, str] = {}
        self.truncated = any("lost its beginning" in (w or "") for w in run.table("quality", part).text("what"))

    def result(self) -> PartMemory | None:
        """Everything; None where the part has no data on memory."""
        counters = [m for m in self.metrics.values("metric") if m.startswith("memory_")]
        if not len(self.memory) and not counters:
            return None
        device = self._device()
        of_device = self.allocations["device"] == device
        sizes = self.allocations["size"][of_device]
        levels = level(self.memory, device, int(sizes[0]) if len(sizes) else None)
        blocks = live(self.allocations, self.memory, device) if len(sizes) else None
        modules = self._owners(blocks)
        return PartMemory(
            self.part, self.rank, self._categories(modules, blocks), modules, self._peak(levels, blocks, modules),
            self._fragmentation(device), self._creep(),
            tuple(int(v) for v in self.samples["value"][self.samples.is_("metric", "memory_oom")].tolist()),
            int(self._last("memory_ooms") or 0), self.why,
        )  # fmt: skip

    def _device(self) -> int:
        """The device with most allocated; the host where there is none."""
        rows = np.flatnonzero(self.memory.is_("category", "allocated", "reserved"))
        devices, value = self.memory["device"][rows], self.memory["bytes"][rows]
        known = (devices >= 0) & (devices != MISSING32)
        return int(devices[known][np.argmax(value[known])]) if known.any() else -1

    def _state(self) -> dict[tuple[str, str | None, str | None], int]:
        """(category, module, phase) -> most bytes at any count; devices of one count are summed."""
        table = self.memory.take(self.memory.is_("category", *CATEGORIES))
        counts: dict[tuple[str | None, str | None, str | None, int], int] = defaultdict(int)
        columns = (table.text("category"), table.text("module"), table.text("phase"))
        for *key, ts, size in zip(*columns, table["ts"].tolist(), table["bytes"].tolist(), strict=True):
            counts[(key[0], key[1], key[2], ts)] += size
        most: dict[tuple[str, str | None, str | None], int] = {}
        for (category, module, phase, _), size in counts.items():
            place = (str(category), module, phase)
            most[place] = max(most.get(place, 0), size)
        return most

    def _owners(self, blocks: Live | None) -> tuple[Owner, ...]:
        """Owners by category: the state that was counted, and activations by the allocator's events."""
        state = self._state()
        found = [Owner(module, phase, category, size) for (category, module, phase), size in state.items()]
        if blocks is not None and not any(o.category == "activation" for o in found):
            kept = np.flatnonzero(np.array([c == "activation" for c in blocks.category], bool))
            most = self._largest_forward(blocks, kept)
            found += [Owner(name, "forward", "activation", size) for name, size in most.items()]
        return tuple(sorted(found, key=lambda o: -o.bytes))

    def _largest_forward(self, blocks: Live, rows: Ints) -> dict[str | None, int]:
        """Owner -> most bytes of its activations that were live at once."""
        out: dict[str | None, int] = {}
        by_owner: dict[str | None, list[int]] = defaultdict(list)
        for i in rows.tolist():
            by_owner[blocks.owner[i]].append(i)
        for owner, mine in by_owner.items():
            at = np.array(mine)
            events = np.concatenate([blocks.born[at], blocks.died[at]])
            change = np.concatenate([blocks.size[at], -blocks.size[at]])
            out[owner] = int(np.cumsum(change[np.argsort(events, kind="stable")]).max())
        return out

    def _categories(self, owners: tuple[Owner, ...], blocks: Live | None) -> dict[str, int | None]:
        out: dict[str, int | None] = {}
        for category in CATEGORIES:
            mine = [o.bytes for o in owners if o.category == category]
            highest = blocks.highest(category) if blocks is not None and category in _FROM_EVENTS else {}
            counted = sum(mine) if mine and category != "activation" else None
            events = max(highest.values()) if highest else None
            out[category] = counted if counted is not None else events if events is not None else sum(mine) if mine else None
            if out[category] is None:
                self.why[category] = self._missing(category, blocks)
        return out

    def _missing(self, category: str, blocks: Live | None) -> str:
        if category in ("activation", "temporary", "input"):
            phases = blocks is None or any(blocks.phase)
            nothing = "no block of that kind among the allocator's events"
            marks = "no phase is marked (dtprof.annotate), and without phases what a block is cannot be told"
            return _EVENTS if blocks is None else nothing if phases else marks
        if category == "communication":
            return "no DistributedDataParallel with buckets of its own was found"
        return _STATE

    def _peak(self, levels: Level | None, blocks: Live | None, owners: tuple[Owner, ...]) -> Peak | None:
        at = int(np.argmax(levels.bytes)) if levels is not None and len(levels.bytes) else None
        holders = self._holders(at, blocks, owners)
        phase = None if at is None or blocks is None else self._phase_at(levels, at)
        if levels is not None and at is not None and not levels.added:
            value, ts = int(levels.bytes[at]), int(levels.ts[at])
            before = levels.before if self.truncated or levels.before else None
            known = ts if ts != MISSING else None
            return Peak(value, "allocated", not self.truncated, known, self._step_at(known), phase, before, holders)
        for metric, basis in (("memory_allocated_peak", "allocated"), ("memory_rss_peak", "resident")):
            rows = np.flatnonzero(self.metrics.is_("metric", metric))
            if len(rows):
                # a peak that the system counts in another place may lie a little below what was read
                rows = np.flatnonzero(
                    self.metrics.is_("metric", metric) | self.metrics.is_("metric", metric.removesuffix("_peak"))
                )
                values = self.metrics["value"][rows]
                first = rows[int(np.argmax(values))]
                return Peak(int(values.max()), basis, True, None, int(self.metrics["step"][first]), phase, None, holders)
        self.why["peak"] = "neither counters of an allocator nor resident memory were recorded"
        return None

    def _holders(self, at: int | None, blocks: Live | None, owners: tuple[Owner, ...]) -> tuple[Owner, ...]:
        """Who held memory at the peak: the live blocks, and of the state what such blocks cannot be."""
        if at is None or blocks is None:
            held = list(owners)
        else:
            held = [Owner(*key, size) for key, size in blocks.sums(blocks.at(at)).items()]
            own = {o.category for o in held}
            held += [o for o in owners if o.category not in own and o.category not in _FROM_EVENTS]
        if not held:
            self.why["owner"] = "nothing is known of who allocated"
        return tuple(sorted(held, key=lambda o: -o.bytes)[:MOST_OWNERS])

    def _phase_at(self, levels: Level | None, at: int) -> str | None:
        if levels is None:
            return None
        rows = np.flatnonzero(self.memory.is_("category", "allocated") & (self.memory["ts"] == levels.ts[at]))
        return self.memory.take(rows[:1]).text("phase")[0] if len(rows) else None

    def _step_at(self, ts: int | None) -> int | None:
        if ts is None or not len(self.steps):
            return None
        start = self.steps["host_ts"]
        inside = np.flatnonzero((start <= ts) & (ts < start + self.steps["host_dur"]))
        return int(self.steps["step"][inside[0]]) if len(inside) else None

    def _last(self, metric: str) -> float | None:
        """Last reading of a step's counter, else of a snapshot's."""
        for table in (self.metrics, self.samples):
            rows = np.flatnonzero(table.is_("metric", metric))
            if len(rows):
                return float(table["value"][rows[-1]])
        return None

    def _fragmentation(self, device: int) -> Fragmentation | None:
        mine = (self.memory["device"] == device) & ~self.memory.known("stack")
        state = {}
        for category in ("reserved", "allocated"):
            rows = np.flatnonzero(mine & self.memory.is_("category", category))
            state[category] = int(self.memory["bytes"][rows[-1]]) if len(rows) else None
        sample = self.samples.take((self.samples["device"] == device) & self.samples.known("value"))
        said = dict(zip(sample.text("metric"), sample["value"].tolist(), strict=True))
        if "memory_inactive" in said and state["reserved"]:
            free = int(said["memory_inactive"])
            return Fragmentation(
                state["reserved"], state["allocated"] or 0, free, free / state["reserved"], int(said["memory_inactive_held"]),
                int(said["memory_pending_free"]), int(said["memory_largest_free"]),
            )  # fmt: skip
        reserved, allocated, split = (self._last(f"memory_{m}") for m in ("reserved", "allocated", "inactive_split"))
        if reserved and allocated is not None:
            free = int(reserved - allocated)
            return Fragmentation(int(reserved), int(allocated), free, free / reserved, None if split is None else int(split))
        self.why["fragmentation"] = "no device's caching allocator was seen; the host's allocator does not tell"
        return None

    def _creep(self) -> Creep | None:
        train = set(self.steps["step"][self.steps.is_("kind", "train")].tolist())
        captured = self.steps["step"][self.steps["captured"]]
        for metric in ("memory_allocated", "memory_rss"):
            rows = np.flatnonzero(self.metrics.is_("metric", metric))
            if not len(rows):
                continue
            steps, values = self.metrics["step"][rows].astype(np.int64), self.metrics["value"][rows].astype(np.int64)
            good = np.array([s in train for s in steps.tolist()], bool)
            found = creep(metric, settled(steps[good], values[good], captured.astype(np.int64)))
            if isinstance(found, Creep):
                return found
            self.why["creep"] = found
            return None
        self.why["creep"] = NO_SERIES
        return None

"""Rules about memory that is lost: to fragmentation, and to growth."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.analyse.memory import MemoryResult, PartMemory
from dtprof.analyse.memory_creep import Creep as Growth
from dtprof.analyse.memory_room import Room
from dtprof.findings import Evidence, Finding
from dtprof.numbers import count, counted, memory, named, percent
from dtprof.protocols import Lens

# free memory beside live blocks is worth a word from this share of what is reserved on, where memory is tight
_LEAST_HELD = 0.10
_TIGHT = 0.80
# a process grows by less than this for reasons of its own (arenas, caches of the tracer), bytes per step
_SERIOUS = 64 * 1024


class Fragmentation:
    """The allocator holds free memory that no request can use."""

    id = "memory.fragmentation"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Only where it hurts: a request failed although as much was free, or the device is nearly full. No price: it has none
        until the job fails, or the allocator begins to ask the driver again.
        """
        result: MemoryResult = study.result("memory")
        room: Room = study.result("memory_room")
        bad = [part for part in result.parts if _unusable(part, room)]
        if not bad:
            return
        worst = max(bad, key=lambda p: p.fragmentation.free if p.fragmentation else 0)
        held, failed = worst.fragmentation, min(worst.failed, default=None)
        if held is None:
            return
        ranks = tuple(sorted({p.rank for p in bad if p.rank is not None}))
        asked = f", and a request for {memory(failed)} failed" if failed is not None else ""
        pieces = f"; the largest piece is {memory(held.largest)}" if held.largest is not None else ""
        beside = ""
        if held.held is not None:
            beside = f" {memory(held.held)} of it lies beside live blocks and cannot be given back{pieces}."
        yield Finding(
            rule=self.id,
            severity="high" if failed is not None or worst.failures else "medium",
            title=f"{memory(held.free)} of the {memory(held.reserved)} that the allocator holds are free in pieces{asked}",
            ranks=ranks,
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(f"{memory(held.allocated)} are live, {percent(held.share)} of what is reserved is free.{beside}"),
            ),
            why="blocks of many sizes come and go, and the gaps between those that stay fit nothing that is asked for",
            next="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets segments grow instead of adding new ones",
            apply="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before the job starts; fewer distinct sizes "
                "(padding)",
            verify="run again and compare reserved with allocated; nvidia-smi shows what is reserved",
        )  # fmt: skip


def _unusable(part: PartMemory, room: Room) -> bool:
    """Is free memory in the way of what is asked for?"""
    held = part.fragmentation
    if held is None or not held.reserved:
        return False
    usable = held.held if held.held is not None else held.free
    if part.failed or part.failures:
        # with less free than was asked for, memory is simply full
        return held.free >= min(part.failed, default=0) and usable >= _LEAST_HELD * held.reserved
    near = room.capacity is not None and held.reserved >= _TIGHT * room.capacity
    return near and usable >= _LEAST_HELD * held.reserved


class Creep:
    """Memory grows steadily, step by step."""

    id = "memory.creep"

    def find(self, study: Lens) -> Iterator[Finding]:
        """The test of docs/memory.md; its false alarms are one in a thousand series. No price: a leak costs the whole job."""
        result: MemoryResult = study.result("memory")
        room: Room = study.result("memory_room")
        bad = [(p, p.creep) for p in result.parts if p.creep is not None and _leaks(p.creep)]
        if not bad:
            return
        worst, growth = max(bad, key=lambda one: one[1].bytes_per_step)
        ranks = tuple(sorted({p.rank for p, _ in bad if p.rank is not None}))
        what = "allocated on the device" if growth.metric == "memory_allocated" else "resident in the process"
        left = None
        if growth.metric == "memory_allocated" and room.capacity is not None and worst.peak is not None:
            left = int(max(room.capacity - worst.peak.bytes, 0) / growth.bytes_per_step)
        full = f"; the device is full after {counted(left, 'step')} more" if left is not None else ""
        listed = "; ".join(
            f"{f'rank {p.rank}' if p.rank is not None else f'part {p.part}'} {memory(round(c.bytes_per_step))} per step "
            f"({memory(round(c.low))} to {memory(round(c.high))}, {count(c.steps)} readings)"
            for p, c in sorted(bad, key=lambda one: -one[1].bytes_per_step)[:8]
        )
        yield Finding(
            rule=self.id,
            severity="medium",
            title=f"Memory of {named('rank', ranks) if ranks else 'the process'} grows by "
            f"{memory(round(growth.bytes_per_step))} per "
            f"step{full}",
            ranks=ranks,
            steps=(),
            seconds_per_step=None,
            evidence=(Evidence(f"Memory {what}, lowest reading of each block of steps: {listed}."),),
            why="something keeps what each step makes: losses in a list with their graphs, a cache without a limit, hooks "
            "that are "
            "added again",
            next="keep losses as numbers (loss.item() or loss.detach()); record allocations and compare two snapshots: "
            "torch.cuda.memory._record_memory_history, or tracemalloc for the host",
            apply="detach what is kept beyond the step; bound caches",
            verify="run again: the report says no steady growth, with its limit",
        )


def _leaks(growth: Growth) -> bool:
    """Does it grow, and on the host by more than processes do anyway?"""
    return growth.grows and (growth.metric == "memory_allocated" or growth.low >= _SERIOUS)

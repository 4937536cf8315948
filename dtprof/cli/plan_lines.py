"""What ``dtprof plan search`` and ``dtprof plan explain`` print for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.text import Text

from dtprof.numbers import change, count, counted, fixed, interval, percent, seconds, size
from dtprof.plan.calibrated import Calibration
from dtprof.plan.memory.breakdown import Memory
from dtprof.plan.search import Candidate, Found, Wanted
from dtprof.plan.search.explain import Neighbour, named, parts
from dtprof.plan.search.words import brief
from dtprof.report.text_layout import Column, hanging, table, wrap

_INDENT = 10
_REASONS, _FRONT = 8, 8
# layouts of the front are shown where they need this share less memory than the one before
_LESS = 0.9
_MEMORY = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states", "activations": "activations",
    "transient": "one layer or the loss at work", "communication": "buffers for communication",
    "fragmentation": "fragmentation, an allowance", "context": "context and communicators", "host": "on the host besides",
}  # fmt: skip


def search_lines(wanted: Wanted, found: Found, rests: Calibration, told: Sequence[str], width: int) -> list[str | Text]:
    """The best layout, why, the ranking, the front, and what lost."""
    best = found.best
    if best is None:
        tried = f"of {counted(found.tried, 'layout')} fits" if found.tried else "keeps the constraints for"
        lines = _block("NO LAYOUT", f"{tried} {wanted.model.name} as asked for", width)
        for text in found.mend or ("nothing that was tried would do: more GPUs, offloading, shorter sequences",):
            lines += _block("WOULD DO" if text is (found.mend or ("",))[0] else "", text, width)
        return [*lines, "", *_lost(found, width)]
    lines = _head(wanted, best, rests, width)
    lines += _blocks("WHY", told, width)
    lines += ["", "The best layout of each grid:", *_ranking(found.ranked, best, width)]
    front = _thinned(found.front)
    if len(front) > 1:
        lines += ["", "With less memory, or cheaper:", *_ranking(front, best, width)]
    return [*lines, "", *_lost(found, width)]


def explain_lines(
    wanted: Wanted, best: Candidate, rests: Calibration, told: Sequence[str], around: Sequence[Neighbour],
    other: Candidate | None, width: int,
) -> list[str | Text]:  # fmt: skip
    """One layout: its terms, its seconds and bytes by part, and what each change would make of it."""
    lines = _head(wanted, best, rests, width)
    if other is not None:
        share = other.score / best.score - 1
        lines += _block(
            "OPEN", f"left open it would be {brief(other.layout)}: {seconds(other.seconds)}, {change(share)}", width
        )
    lines += _blocks("WHY", told, width)
    spent = [(named(name), value) for name, value in parts(best.time).items() if value > 0]
    lines += ["", "Seconds of a step on the slowest rank:"]
    lines += table(
        [
            Column("part", [name for name, _ in spent], right=False),
            Column("s", [fixed(value, 3) for _, value in spent]),
            Column("share", [percent(value / best.seconds) for _, value in spent]),
        ],
        width,
    )
    lines += ["", f"Memory of a rank of stage {best.memory.stage}, which needs most:", *memory_table(best.memory, width)]
    lines += ["", "One change at a time:"]
    lines += table(
        [
            Column("change", [one.what for one in around], right=False),
            Column("s a step", ["" if one.seconds is None else fixed(one.seconds, 3) for one in around]),
            Column("", [one.why for one in around], right=False, flexible=True),
        ],
        width,
    )
    return lines


def _head(wanted: Wanted, best: Candidate, rests: Calibration, width: int) -> list[str | Text]:
    low, high = rests.interval(best.seconds)
    bounds = interval(low * 1e9, high * 1e9)
    room = f"{size(best.memory.device)} of {size(wanted.cluster.memory_bytes)} on the fullest GPU"
    tight = "" if best.fit == "fits" else "; it fits only without the allowances for fragmentation and context"
    speed = f"{count(round(best.tokens_per_s))} tokens/s, {fixed(best.gpu_hours, 1)} GPU hours for 1e9 tokens"
    cost = f", {fixed(best.cost, 2)} at {fixed(best.price, 2)} each" if best.price else ""
    batch = f", global batch {count(best.layout.global_batch)}" if not wanted.global_batch else ""
    lines = _block("FASTEST", f"{brief(best.layout)}: {seconds(best.seconds)} a step ({bounds}), {room}{tight}", width)
    lines += _block("", f"{wanted.model.name} on {counted(best.layout.gpus, 'GPU')}{batch}: {speed}{cost}", width)
    return lines + _block("RESTS ON", rests.name, width)


def _ranking(ranked: Sequence[Candidate], best: Candidate, width: int) -> list[Text]:
    against = [change(one.score / best.score - 1) if one is not best else "" for one in ranked]
    columns = [
        Column("layout", [brief(one.layout) for one in ranked], right=False, flexible=True),
        Column("s a step", [fixed(one.seconds, 3) for one in ranked]),
        Column("", against),
        Column("memory", [size(one.memory.device) for one in ranked]),
        Column("GPU h\nper 1e9", [fixed(one.gpu_hours, 1) for one in ranked], goes=2),
    ]
    if best.price:
        columns.append(Column("cost\nper 1e9", [fixed(one.cost, 2) for one in ranked], goes=1))
    return table(columns, width, least=40)


def _thinned(front: Sequence[Candidate]) -> list[Candidate]:
    kept: list[Candidate] = []
    for one in front:
        if not kept or one.memory.device <= _LESS * kept[-1].memory.device or one.cost < kept[-1].cost:
            kept.append(one)
    return kept[:_FRONT]


def memory_table(memory: Memory, width: int) -> list[Text]:
    """Bytes by part, and all of them."""
    rows = [(text, getattr(memory, name)) for name, text in _MEMORY.items() if getattr(memory, name)]
    rows.append(("all of the device", memory.device))
    return table(
        [Column("part", [text for text, _ in rows], right=False), Column("1e9 bytes", [fixed(b / 1e9, 2) for _, b in rows])],
        width,
    )


def _lost(found: Found, width: int) -> list[str | Text]:
    lines: list[str | Text] = [f"{counted(found.tried, 'layout')} looked at. What was left out, and the nearest of it:"]
    for miss in islice(found.misses, _REASONS):
        lines += hanging(f"{count(miss.count):>8}", wrap(f"{miss.reason}; {miss.nearest}", width - _INDENT), _INDENT, "", "")
    return lines


def _blocks(label: str, texts: Sequence[str], width: int) -> list[str | Text]:
    return [line for place, text in enumerate(texts) for line in _block("" if place else label, text, width)]


def _block(label: str, text: str, width: int) -> list[str | Text]:
    return list(hanging(label, wrap(text, width - _INDENT), _INDENT))

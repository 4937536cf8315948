"""Stacked bars out of terminal cells: coloured to an eighth of a cell, or letters where there is no colour."""

from __future__ import annotations

from collections.abc import Mapping

from rich.color import Color
from rich.style import Style
from rich.text import Text

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import Scale
from dtprof.report.palette import PARTS, PartStyle

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def edges(parts: Mapping[str, float], cells_per_ns: float, resolution: int) -> list[tuple[str, int, int]]:
    """(key, start, end) in units of 1/resolution cell, in the order of the accounting; neighbours share an edge exactly."""
    out, at = [], 0.0
    for key in ACCOUNTING:
        end = at + parts.get(key, 0)
        lo, hi = round(at * cells_per_ns * resolution), round(end * cells_per_ns * resolution)
        if hi > lo:
            out.append((key, lo, hi))
        at = end
    return out


def letters(parts: Mapping[str, float], cells_per_ns: float) -> Text:
    """A bar of letters, one per cell (the key names them)."""
    return Text("".join(PARTS[key].letter * (hi - lo) for key, lo, hi in edges(parts, cells_per_ns, 1)))


def blocks(parts: Mapping[str, float], cells_per_ns: float, scale: Scale, dark: bool) -> Text:
    """A coloured bar; a part with room for it carries its number."""
    spans = edges(parts, cells_per_ns, 8)
    cells = -(-spans[-1][2] // 8) if spans else 0
    text = Text()
    for cell in range(cells):
        text.append_text(_cell(spans, cell * 8, dark))
    for key, lo, hi in spans:
        first, last = -(-lo // 8), hi // 8
        number = scale.text(parts[key])
        if last - first >= len(number) + 2:
            at = first + (last - first - len(number)) // 2
            text = Text.assemble(text[:at], (number, _style(PARTS[key], dark)), text[at + len(number) :])
    return text


def swatch(key: str, dark: bool, colour: bool) -> Text:
    """The mark of a part in a key: two coloured cells, or its letter."""
    return Text("  ", _style(PARTS[key], dark)) if colour else Text(PARTS[key].letter)


def _cell(spans: list[tuple[str, int, int]], at: int, dark: bool) -> Text:
    """One cell: its one colour, or an eighth block between its first and its last."""
    inside = [(key, max(lo, at), min(hi, at + 8)) for key, lo, hi in spans if lo < at + 8 and hi > at]
    if len(inside) == 1 and inside[0][2] - inside[0][1] == 8:
        return Text(" ", _style(PARTS[inside[0][0]], dark))
    if len(inside) == 1:
        return Text(_EIGHTHS[inside[0][2] - at], Style(color=_fill(PARTS[inside[0][0]], dark)))
    inside.sort(key=lambda part: part[1] - part[2])
    left, right = sorted(inside[:2], key=lambda part: part[1])
    filled = inside[-1][2] == at + 8 or max(part[2] for part in inside) == at + 8
    background = _fill(PARTS[right[0]], dark) if filled else None
    return Text(_EIGHTHS[max(1, left[2] - at)], Style(color=_fill(PARTS[left[0]], dark), bgcolor=background))


def _fill(style: PartStyle, dark: bool) -> Color:
    return Color.parse(style.dark if dark else style.light)


def _style(style: PartStyle, dark: bool) -> Style:
    return Style(color=style.on_dark if dark else style.on_light, bgcolor=_fill(style, dark))

"""SVG marks as text. Colours are CSS variables only, so that a figure follows the theme of its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape as escape

from dtprof.report.palette import PARTS

# from a value to a coordinate
Place = Callable[[float], float]

# patterns that figures refer to; a page holds them once
DEFS = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="p-unsplit" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="8" height="8" fill="var(--wait)"/><rect width="3" height="8" fill="var(--transfer)"/></pattern></defs></svg>'
)

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|()[]!· "), frozenset("mwMW%@≤▶")


def fill(key: str) -> str:
    """Paint of an accounting key."""
    name = PARTS[key].fill
    return "url(#p-unsplit)" if name == "unsplit" else f"var(--{name})"


def figure(width: float, height: float, label: str, body: Iterable[str], fixed: bool = False) -> str:
    """One figure; ``fixed`` keeps its size, else it fills the width of its place up to its own."""
    size = f"width:{number(width)}px;height:{number(height)}px" if fixed else f"max-width:{number(width)}px"
    box = f'viewBox="0 0 {number(width)} {number(height)}"'
    return f'<svg {box} style="{size}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>'


def rect(x: float, y: float, w: float, h: float, paint: str, title: str, extra: str = "") -> str:
    """A mark; every mark has a title: who, what, how much, share."""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(w)}" height="{number(h)}"'
    colour = f' fill="{paint}"' if paint else ""
    return f"<rect {place}{colour}{extra}><title>{escape(title)}</title></rect>"


def leads(target: str) -> str:
    """The attribute of a mark that leads somewhere on a click, as ``page=timeline&rank=1``; nothing for nowhere."""
    return f' data-go="{escape(target)}"' if target else ""


def text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    """Words at a place; ``css`` names classes (b bold, m muted, on-… for text on a mark)."""
    look = f' class="{css}"' if css else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{number(x)}" y="{number(y)}"{look}{where}>{escape(words)}</text>'


def on_mark(x: float, y: float, words: str, key: str) -> str:
    """A number inside a mark, in the colour that is legible there; on a plate where the mark is striped."""
    plate = ""
    if PARTS[key].fill == "unsplit":
        w = width_of(words) + 6
        plate = f'<rect x="{number(x - w / 2)}" y="{number(y - 11)}" width="{number(w)}" height="14" fill="var(--page)"/>'
    paint = "var(--ink)" if plate else f"var(--{PARTS[key].on})"
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="middle"'
    return f'{plate}<text {place} style="fill:{paint}" pointer-events="none">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A line: ``ax`` an axis, ``hair`` a hairline, ``lead`` a leader."""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} class="{css}"/>'


def width_of(words: str, px: float = 12, bold: bool = False) -> float:
    """Estimated width of text, on the wide side for the usual sans-serif faces."""
    ems = sum(0.34 if c in _NARROW else 0.92 if c in _WIDE else 0.62 for c in words)
    return ems * px * (1.06 if bold else 1)


def number(value: float) -> str:
    """A coordinate with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")

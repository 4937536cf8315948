"""A metric over stored results: dots, the level between changes, a mark at every change. As SVG text and as characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtprof.report import svg

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920.0, 260.0, 96.0, 16.0, 20.0, 34.0
_ROWS = 10

Level = tuple[int, int, float]
Words = Callable[[float], str]


def history_figure(title: str, names: Sequence[str], values: Sequence[float], levels: Sequence[Level], words: Words) -> str:
    """Dots of ``values`` in order with ``levels`` (first, end, height); heights are written by ``words``."""
    low, high = _range(values)
    step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)

    def x(i: float) -> float:
        return LEFT + step * (i + 0.5)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    body = [svg.line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "ax")]
    for tick in (low, (low + high) / 2, high):
        body += [
            svg.line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "hair"),
            svg.text(LEFT - 8, y(tick) + 4, words(tick), "m", "end"),
        ]
    for first, end, height in levels:
        body.append(svg.line(x(first - 0.5), y(height), x(end - 0.5), y(height), "ax"))
        if first:
            body.append(svg.line(x(first - 0.5), TOP, x(first - 0.5), HEIGHT - BOTTOM, "lead"))
            body.append(svg.text(x(first - 0.5) + 4, TOP - 6, names[first], "m"))
    size = max(min(step * 0.6, 8.0), 2.0)
    for i, value in enumerate(values):
        body.append(
            svg.rect(x(i) - size / 2, y(value) - size / 2, size, size, "var(--compute)", f"{names[i]} · {words(value)}")
        )
    if values:
        body.append(svg.text(x(0), HEIGHT - 12, names[0], "m"))
        body.append(svg.text(x(len(values) - 1), HEIGHT - 12, names[-1] if len(values) > 1 else "", "m", "end"))
    return svg.figure(WIDTH, HEIGHT, title, body)


def history_page(title: str, figures: Sequence[tuple[str, str]]) -> str:
    """A self-contained page of (heading, figure)."""
    from html import escape

    from dtprof.report.html import style

    body = "".join(f'<section><h2>{escape(head)}</h2><div class="wide">{figure}</div></section>' for head, figure in figures)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{style()}</style></head><body>{svg.DEFS}<main>{body}</main></body></html>\n"
    )


def history_text(values: Sequence[float], levels: Sequence[Level], words: Words, width: int) -> list[str]:
    """The same in characters: ``o`` a result (several of a column at their mean), ``-`` the level, ``|`` a change."""
    low, high = _range(values)
    margin = max(len(words(v)) for v in (low, (low + high) / 2, high)) + 1
    columns = min(len(values), max(width - margin - 2, 10))
    rows = [[" "] * columns for _ in range(_ROWS)]

    def row(value: float) -> int:
        return round((_ROWS - 1) * (high - value) / (high - low))

    def column(i: int) -> int:
        return i * columns // len(values)

    for first, end, height in levels:
        for c in range(column(first), column(end - 1) + 1):
            rows[row(height)][c] = "-"
        if first:
            for line in rows:
                line[column(first)] = "|"
    for c in range(columns):
        mine = [v for i, v in enumerate(values) if column(i) == c]
        rows[row(sum(mine) / len(mine))][c] = "o"
    marks = {0: high, _ROWS // 2: (low + high) / 2, _ROWS - 1: low}
    return [f"{words(marks[i]) if i in marks else '':>{margin}} {''.join(line)}".rstrip() for i, line in enumerate(rows)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest with a little room; never empty."""
    low, high = min(values), max(values)
    room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - room, high + room

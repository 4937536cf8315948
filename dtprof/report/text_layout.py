"""Layout of terminal text: wrapping on plain spaces, tables that give up their least columns first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dtprof.numbers import NBSP


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` cells, broken at plain spaces only; a longer word is cut."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        rest = word if not line else f"{line} {word}"
        while cell_len(rest) > width:
            head = _head(rest, width)
            lines.append(head)
            rest = rest[len(head) :]
        line = rest
    return [*lines, line] if line or not lines else lines


def command(text: str, width: int) -> list[str]:
    """A shell command in lines that can be pasted as they are: broken at spaces, each but the last ending in a backslash."""
    if cell_len(text) <= width:
        return [text]
    first, *rest = wrap(text, width - 4)
    lines = [first, *(f"  {line}" for line in rest)]
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def hanging(label: str, body: Sequence[str], indent: int, style: str = "", label_style: str = "bold") -> list[Text]:
    """Lines with a label in the margin of the first."""
    out = []
    for i, line in enumerate(body):
        margin = set_cell_size(label, indent) if i == 0 else " " * indent
        out.append(Text.assemble((margin, label_style), (plain(line), style)))
    return out


def plain(text: str) -> str:
    """Non-breaking spaces have done their work once lines are broken."""
    return text.replace(NBSP, " ")


def cut(text: str, width: int) -> str:
    """At most ``width`` cells, ended by an ellipsis where something was lost."""
    return text if cell_len(text) <= width else (_head(text, width - 1) + "…" if width > 0 else "")


@dataclass(frozen=True)
class Column:
    """One column: its head (lines), its cells, and how early it goes when the terminal is narrow (0 never)."""

    head: str
    cells: Sequence[str]
    right: bool = True
    goes: int = 0
    flexible: bool = False

    @property
    def width(self) -> int:
        """Cells that the widest entry needs."""
        return max(map(cell_len, [*self.head.split("\n"), *self.cells]))


def table(columns: Sequence[Column], width: int, least: int = 26) -> list[Text]:
    """A table of exactly the columns that fit; the flexible one is cut to the room that is left, but not below ``least``."""
    kept = list(columns)
    while _needed(kept, least) > width and any(c.goes for c in kept):
        kept.remove(max(kept, key=lambda c: c.goes))
    room = width - sum(c.width for c in kept if not c.flexible) - 2 * (len(kept) - 1)
    widths = [min(c.width, max(room, 4)) if c.flexible else c.width for c in kept]
    heads = [c.head.split("\n") for c in kept]
    height = max(map(len, heads))
    heads = [[""] * (height - len(head)) + head for head in heads]
    lines = [Text(cut(_line([head[i] for head in heads], kept, widths), width), "dim") for i in range(height)]
    rows = zip(*(c.cells for c in kept), strict=True)
    return lines + [Text(cut(_line(row, kept, widths), width)) for row in rows]


def _needed(columns: Sequence[Column], least: int) -> int:
    return sum(min(least, c.width) if c.flexible else c.width for c in columns) + 2 * (len(columns) - 1)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    out = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        text = cut(plain(cell), width)
        pad = " " * (width - cell_len(text))
        out.append(pad + text if column.right else text + pad)
    return "  ".join(out).rstrip()


def _head(text: str, width: int) -> str:
    """The longest beginning of at most ``width`` cells, but at least one character."""
    end, used = 0, 0
    while end < len(text) and used + cell_len(text[end]) <= width:
        used += cell_len(text[end])
        end += 1
    return text[: max(end, 1)]

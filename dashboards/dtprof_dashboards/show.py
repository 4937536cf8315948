"""What pages are made of: markup with figures, headings, verdict lines, tiles, and places that say what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from importlib.resources import files
from typing import Any

import streamlit as st

from dtprof.errors import DtprofError
from dtprof.findings import Finding
from dtprof.numbers import NOT_KNOWN
from dtprof.report.html_tables import inline, prose
from dtprof.report.palette import tokens
from dtprof.report.svg import DEFS
from dtprof.report.wording import emphasis, is_command
from dtprof_dashboards import selection

# the width of a figure across the page, and of one of two side by side, in px at a laptop's width
FULL, HALF = 1088.0, 520.0
_EMPHASIS = {"wait": "w", "compute": "c", "transfer": "t"}


@cache
def _component() -> Any:
    """The component that draws markup; registered once per process."""
    script = files("dtprof_dashboards").joinpath("markup.js").read_text(encoding="utf-8")
    return st.components.v2.component("dtprof_markup", html='<div class="dt"></div>', js=script, isolate_styles=False)


def markup(text: str, key: str = "") -> None:
    """Draw markup; every text in it is escaped already. With a ``key`` of its page, a click on a mark that says where to go
    (``data-go``) goes there. As bytes, for to tell what a text is Streamlit imports pandas.
    """
    data = text.encode()
    if key:
        widget = selection.widget_key(key)
        _component()(data=data, key=widget, on_go_change=partial(_go, widget))
    else:
        _component()(data=data)


def _go(widget: str) -> None:
    """What a click chose: it is kept before anything is drawn."""
    selection.follow(str(st.session_state[widget].go or ""))


def style() -> None:
    """The colours of both themes and the style sheets, once per page."""
    light, dark = tokens(False), tokens(True)
    colours = ";".join(f"--{name}:light-dark({light[name]},{dark[name]})" for name in light)
    report = files("dtprof.report").joinpath("style.css").read_text(encoding="utf-8")
    own = files("dtprof_dashboards").joinpath("dashboard.css").read_text(encoding="utf-8")
    st.html(f"<style>.stApp{{{colours}}}\n.dt{{{report}}}\n{own}</style>")


def title(name: str, meta: str) -> None:
    """The first line of a page, and the patterns that its figures refer to."""
    markup(f'{DEFS}<div class="title"><h1>{escape(name)}</h1><span class="meta">{escape(meta)}</span></div>')


def verdict(text: str, why: str = "", following: Sequence[str] = (), commands: Sequence[str] = ()) -> None:
    """VERDICT, WHY, NEXT: what a person sees first."""
    lead, meaning, rest = emphasis(text[:1].upper() + text[1:])
    marked = f'<span class="{_EMPHASIS[meaning]}">{escape(lead)}</span>' if meaning else ""
    lines = f'<dt class="v">VERDICT</dt><dd class="v">{marked}{inline(rest)}</dd>'
    if why:
        lines += f"<dt>WHY</dt><dd>{inline(why)}</dd>"
    if following or commands:
        said = "".join(f"<p>{inline(sentence)}</p>" for sentence in following)
        typed = "".join(f'<span class="cmd">{escape(line)}</span>' for line in commands)
        lines += f"<dt>NEXT</dt><dd>{said}{typed}</dd>"
    markup(f'<dl class="verdict">{lines}</dl>')


def verdict_of(findings: Sequence[Finding], otherwise: str, why: str = "") -> None:
    """The first of these findings as the verdict of a page; a sentence where there is none."""
    if findings:
        lead = findings[0]
        verdict(lead.title, lead.why, [lead.next] if lead.next else [])
    else:
        verdict(otherwise, why)


@dataclass(frozen=True)
class Tile:
    """One number with its name and what it rests on; ``value`` None is not known, and ``note`` says why."""

    name: str
    value: str | None
    note: str = ""
    unit: str = ""


def tiles(found: Iterable[Tile]) -> None:
    """A row of numbers."""
    markup(f'<div class="tiles">{"".join(map(_tile, found))}</div>')


def _tile(tile: Tile) -> str:
    value = f"<b>{escape(tile.value)}</b>" if tile.value is not None else f'<b class="muted">{NOT_KNOWN}</b>'
    unit = f" <small>{escape(tile.unit)}</small>" if tile.unit else ""
    return f"<div><span>{escape(tile.name)}</span>{value}{unit}<i>{inline(tile.note)}</i></div>"


def section(name: str, sub: str, body: str) -> None:
    """A heading, what is drawn, and the drawing; ``sub`` and ``body`` are markup."""
    words = f'<p class="sub">{sub}</p>' if sub else ""
    key = f"marks of {name}" if " data-go=" in body else ""
    markup(f'<section><h2>{escape(name)}</h2>{words}<div class="wide">{body}</div></section>', key)


def nothing(name: str, what: str, how: str = "") -> None:
    """Keeps the place of something that is not there: what is missing, and how to get it (prose with commands)."""
    remedy = f"<p>{prose(how)}</p>" if how else ""
    markup(f'<section><div class="nothing"><h2>{escape(name)}</h2><p>{inline(what)}</p>{remedy}</div></section>')


def failed(name: str, error: DtprofError) -> None:
    """The same for what cannot be read: why, and the remedy."""
    hint = error.hint
    if hint and not is_command(hint):
        hint = f"{hint[:1].upper()}{hint[1:]}{'' if hint.endswith(('.', '…')) else '.'}"
    nothing(name, f"{error.message}.", hint)


def sign(kind: str, word: str, text: str) -> str:
    """A status, as sign and word on its ground, and a sentence."""
    return f'<p class="status"><span class="{kind}">{escape(word)}</span> {text}</p>'


def sentences(notes: Iterable[str]) -> str:
    """Notes as sentences, one after the other."""
    return " ".join(f"{note[:1].upper()}{note[1:]}." for note in notes)


def figure(drawing: str) -> str:
    """A figure in its place."""
    return f"<figure>{drawing}</figure>"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = (), css: str = "") -> str:
    """A table; ``numbers`` are the columns that hold numbers. Cells are plain text and escaped here."""
    right = frozenset(numbers)

    def cell(tag: str, i: int, words: str) -> str:
        return f"<{tag}{' class=n' if i in right else ''}>{inline(words)}</{tag}>"

    head = "".join(cell("th", i, h) for i, h in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', i, c) for i, c in enumerate(row))}</tr>" for row in rows)
    return f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

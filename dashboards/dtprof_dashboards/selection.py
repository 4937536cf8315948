"""What is selected: run, page, rank, step. The session holds it; the address shows it, and gives it to a new session.

Once a session runs its address is written and not read: a click that comes while a slow page is still being drawn carries
an old address, and must not undo what was chosen before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl

import streamlit as st

_HELD, _PAGE, _NEXT = "dtprof_selection", "dtprof_page", "dtprof_next"
_ALL = -1
KEYS = ("run", "rank", "step", "other", "window")


def selected() -> dict[str, str]:
    """The selection of this session; that of the address where the session has just begun."""
    if _HELD not in st.session_state:
        st.session_state[_HELD] = {key: st.query_params[key] for key in KEYS if key in st.query_params}
    held: dict[str, str] = st.session_state[_HELD]
    return held


def keep(key: str, value: str | None) -> None:
    """Select a value; None selects none."""
    held = selected()
    if value is None:
        held.pop(key, None)
    else:
        held[key] = value


def address(page: str) -> dict[str, str]:
    """The query of a page's address with this selection."""
    held = selected()
    return {"page": page} | {key: held[key] for key in KEYS if key in held}


def begin_page(page: str) -> bool:
    """Note the page that is drawn; True where it is the first of this session."""
    first = _PAGE not in st.session_state
    st.session_state[_PAGE] = page
    return first


def follow(target: str) -> None:
    """Select what a mark of a figure names, as ``page=timeline&rank=1&step=6``: before anything of the page is drawn."""
    wanted = dict(parse_qsl(target[:200]))
    for key in ("rank", "step"):
        text = wanted.get(key, "")
        if text.isascii() and text.isdigit() and len(text) < 12:
            keep(key, text)
            st.session_state[widget_key(key)] = int(text)
    if "page" in wanted:
        keep("window", None)
        st.session_state[_NEXT] = wanted["page"]


def next_page() -> str | None:
    """The page that a mark has asked for, once."""
    asked: str | None = st.session_state.pop(_NEXT, None)
    return asked


def widget_key(name: str) -> str:
    """The key of a widget of this page."""
    return f"{st.session_state[_PAGE]}_{name}"


def show_address() -> None:
    """Write the address where it says something else."""
    wanted = address(st.session_state[_PAGE])
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def number(key: str) -> int | None:
    """A selected rank or step; None where none is selected or the address holds no number."""
    text = selected().get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def choose(
    key: str, label: str, values: Sequence[int | None], words: Callable[[int | None], str], default: int | None = None
) -> int | None:
    """A box to select a number; the selection outlives the page. ``values`` is not empty; None may be one of them."""
    widget, wanted = widget_key(key), number(key)
    if wanted not in values:
        wanted = default if default in values else values[0]
    # the box takes None for no choice at all
    options = [_ALL if value is None else value for value in values]
    if st.session_state.get(widget) not in options:
        st.session_state[widget] = _ALL if wanted is None else wanted
    chosen = st.selectbox(label, options, format_func=lambda v: words(None if v == _ALL else v), key=widget)
    value = None if chosen == _ALL else chosen
    keep(key, None if value is None else str(value))
    return value

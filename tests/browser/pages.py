"""What the tests of pages share: a server, waiting for a page, and what it shows."""

import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path

DTPROF = str(Path(sys.executable).with_name("dtprof"))
BOXES = "[data-testid=stMain] [data-testid=stSelectbox]"
READY = "[data-test-script-state=notRunning]"
COMPLETE = ".tl canvas[data-complete=true]"


@contextlib.contextmanager
def serving(root, env=None):
    """The address of the dashboard over a folder."""
    with subprocess.Popen([DTPROF, "dashboard", str(root), "--json"], stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            told = json.loads(process.stdout.readline())
            assert told["schema"] == 1 and told["url"].startswith("http://127.0.0.1:")
            yield told["url"]
        finally:
            process.terminate()
            assert process.wait(30) == 130


@contextlib.contextmanager
def opening(browser, url):
    """``open(query, …)``: a new tab at that address; every error and every request elsewhere fails the test."""
    errors, opened = [], []

    def start(query, scheme="light"):
        tab = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
        opened.append(tab)
        tab.on("console", lambda m: errors.append(m.text) if m.type == "error" and not looks_for_its_root(m) else None)
        tab.on("pageerror", lambda e: errors.append(str(e)))
        tab.on("request", lambda r: None if r.url.startswith((url, "data:", "blob:")) else errors.append(r.url))
        tab.goto(f"{url}/?{query}", timeout=120_000)
        return tab

    yield start
    for tab in opened:
        tab.close()
    assert errors == []


def looks_for_its_root(message):
    """On an address like /ranks Streamlit asks for its server below that path first, and is told that it is not there."""
    return re.search(r"/[a-z]+/_stcore/[a-z-]+$", message.location.get("url", "")) is not None


def settle(tab):
    """Wait until the page is drawn."""
    tab.wait_for_selector(".dt .foot", timeout=120_000)
    tab.wait_for_timeout(400)
    tab.wait_for_selector(READY, timeout=120_000)


def boxes(tab):
    """What the boxes of the page show."""
    return tab.eval_on_selector_all(f"{BOXES} input", "all => all.map(e => e.value)")


def choose(tab, nth, option):
    """Choose an option of a box of the page."""
    tab.click(f"{BOXES} >> nth={nth}")
    tab.click(f"[role=option]:has-text('{option}')")


def window(tab):
    """What the timeline shows, (from, to) in ns."""
    first, last = tab.get_attribute(".tl canvas", "data-window").split(":")
    return int(first), int(last)


def corner(tab):
    """The canvas's corner in the page, px."""
    box = tab.locator(".tl canvas").bounding_box()
    return box["x"], box["y"]

"""How fast the timeline is in Chromium: its first picture of a million slices, and each frame while it is dragged and zoomed.

    benchmarks/timeline.py [RUN] [--json] [--events N] [--shots FOLDER]

Without RUN a run of eight ranks with N events together (a million) is made. The run is opened once before, so that its
cache is warm. First paint is from the click on the page's name to the canvas with all slices; a frame is what the script
of the page needs to draw one while the pointer moves, and ``pan_worst_gap_ms`` the longest time between two frames.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import dashboard

FIRST_S, FRAME_MS = 1.5, 100.0
LINK = "[data-testid=stSidebar] .stPageLink a:has-text('{}')"
COMPLETE = ".tl canvas[data-complete=true]"
# frames and the time between them, noted by the page itself
WATCH = """() => {
  const canvas = document.querySelector('.tl canvas'), seen = window.dtprofFrames = {frames: [], gaps: [], on: true};
  let last = performance.now();
  const look = now => {
    seen.gaps.push(now - last); seen.frames.push(Number(canvas.dataset.frame)); last = now;
    if (seen.on) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


def moved(tab, act):
    """Frames (ms) and gaps (ms) while ``act`` moves the pointer."""
    tab.evaluate(WATCH)
    act()
    tab.wait_for_timeout(200)
    found = tab.evaluate("() => { window.dtprofFrames.on = false; return window.dtprofFrames; }")
    return found["frames"][1:], found["gaps"][1:]


def drag(tab, box):
    tab.mouse.move(box["x"] + 800, box["y"] + 150)
    tab.mouse.down()
    for i in range(60):
        tab.mouse.move(box["x"] + 800 - 8 * i, box["y"] + 150)
    tab.mouse.up()


def zoom(tab, box):
    tab.mouse.move(box["x"] + 600, box["y"] + 150)
    for delta in [-120] * 12 + [120] * 12:
        tab.mouse.wheel(0, delta)
        tab.wait_for_timeout(16)


def measure(run, shots=None, repeats=3):
    """{first_paint_s, pan_frame_ms, pan_worst_frame_ms, pan_worst_gap_ms, zoom_…}: medians, and the worst of all."""
    from playwright.sync_api import sync_playwright

    dtprof = str(Path(sys.executable).with_name("dtprof"))
    process = subprocess.Popen([dtprof, "dashboard", str(run), "--json"], stdout=subprocess.PIPE, text=True)
    firsts, pans, pan_gaps, zooms = [], [], [], []
    try:
        url = json.loads(process.stdout.readline())["url"]
        with sync_playwright() as playwright:
            program = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            for session in range(repeats + 1):
                scheme = "dark" if session % 2 else "light"
                tab = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=scheme)
                tab.goto(url)
                tab.wait_for_selector(".dt .foot", timeout=300_000)
                tab.wait_for_timeout(1000)
                began = time.perf_counter()
                tab.click(LINK.format("Timeline"))
                tab.wait_for_selector(COMPLETE, timeout=120_000)
                firsts.append(time.perf_counter() - began)
                box = tab.locator(".tl canvas").bounding_box()
                if shots:
                    tab.screenshot(path=f"{shots}/whole.{scheme}.png")
                frames, _ = moved(tab, lambda tab=tab, box=box: zoom(tab, box))
                zooms += frames
                for _ in range(6):
                    tab.mouse.wheel(0, -200)
                tab.wait_for_selector(COMPLETE, timeout=60_000)
                frames, gaps = moved(tab, lambda tab=tab, box=box: drag(tab, box))
                pans, pan_gaps = pans + frames, pan_gaps + gaps
                if shots:
                    tab.screenshot(path=f"{shots}/moved.{scheme}.png")
                tab.close()
            browser.close()
    finally:
        process.terminate()
        process.wait(30)
    return {
        "first_paint_cold_s": round(firsts[0], 3), "first_paint_s": round(statistics.median(firsts[1:]), 3),
        "pan_frame_ms": round(statistics.median(pans), 2), "pan_worst_frame_ms": round(max(pans), 2),
        "pan_gap_ms": round(statistics.median(pan_gaps), 1), "pan_worst_gap_ms": round(max(pan_gaps), 1),
        "zoom_frame_ms": round(statistics.median(zooms), 2), "zoom_worst_frame_ms": round(max(zooms), 2),
        "limit_first_s": FIRST_S, "limit_frame_ms": FRAME_MS,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="a run or folder of traces (one is made)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="events of the run that is made")
    parser.add_argument("--shots", metavar="FOLDER", help="pictures of what was measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:
        run = Path(args.run) if args.run else Path(folder) / "eight"
        if not args.run:
            dashboard.EVENTS = args.events // dashboard.RANKS
            dashboard.make_run(run)
        found = measure(run, args.shots)
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:20} {value}")


if __name__ == "__main__":
    main()

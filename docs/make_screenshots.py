"""Draws the pictures of dashboard.md from the run of ``make demo``: ``.venv/bin/python docs/make_screenshots.py``.

Needs what ``make test-browser`` installs, and Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUN = HERE.parent / "runs" / "demo"
PAGES = ("overview", "ranks", "overlap", "timeline", "whatif")
# what What-if shows: the planted slow rank as fast as the others
EDIT = ("ideal.rank", "1")
WIDTH, HEIGHT = 1440, 900


def main() -> int:
    """Write docs/screenshots/PAGE.THEME.png."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if not (RUN / "manifest.json").exists() or program is None:
        sys.stderr.write("make_screenshots: needs Chromium, and the run of make demo\n")
        return 1
    dtprof = str(Path(sys.executable).with_name("dtprof"))
    process = subprocess.Popen([dtprof, "dashboard", str(RUN), "--json"], stdout=subprocess.PIPE, text=True)
    folder = HERE / "screenshots"
    folder.mkdir(exist_ok=True)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            for theme in ("light", "dark"):
                tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
                for page in PAGES:
                    tab.goto(f"{url}/?page={page}")
                    tab.wait_for_selector(".dt .foot", timeout=60_000)
                    tab.wait_for_selector("[data-test-script-state=notRunning]", timeout=60_000)
                    if page == "whatif":
                        tab.wait_for_selector(".dt h2:text-matches('What no model')", timeout=60_000)
                        tab.wait_for_selector("[data-test-script-state=notRunning]", timeout=60_000)
                        box = tab.locator(f"[data-testid=stSelectbox]:has-text('{EDIT[0]}') input")
                        # what scrolls closes an open box
                        box.scroll_into_view_if_needed()
                        tab.wait_for_timeout(1500)
                        box.click()
                        tab.click(f"[role=option]:has-text('{EDIT[1]}')")
                        tab.wait_for_selector(".dt h2:text-matches('Predicted beside|Withheld')", timeout=60_000)
                        tab.wait_for_selector("[data-test-script-state=notRunning]", timeout=60_000)
                    tab.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 0)")
                    tab.wait_for_timeout(2000)
                    tab.screenshot(path=folder / f"{page}.{theme}.png")
            browser.close()
    finally:
        process.terminate()
        process.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One real browser for the tests of pages."""

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    """A browser that reaches loopback only."""
    api = pytest.importorskip("playwright.sync_api", reason="make test-browser installs playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()

"""The dashboard in a real browser: no error, the numbers of the report, addresses that restore, clicks that last."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

import dtprof
from dtprof.analyse import study_of
from dtprof.numbers import time
from dtprof.report.document import document
from dtprof_dashboards.pages import PAGES
from tests.browser.pages import DTPROF, boxes, opening, serving, settle
from tests.unit.dashboards.test_pages import EVIL, evil_run, plain, write_run

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

SLUGS = [page.slug for page in PAGES]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, truth):
    """A folder of runs: a job with a slow rank, a pipeline, a mixture of experts, eight ranks of a real trace."""
    root = tmp_path_factory.mktemp("runs")
    jobs = {
        "ddp": ["ddp", "--inject", "slow_rank=1:20ms", "--steps", "12", "--capture", "4:8"],
        "pipeline": ["pipeline", "--steps", "8", "--capture", "4:6"],
        "moe": ["moe", "--steps", "8", "--capture", "4:6"],
    }
    for name, words in jobs.items():
        done = subprocess.run(
            [DTPROF, "job", *words, "--ranks", "2", "--out", str(root / name)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    os.symlink(truth / "traces" / "kineto" / "dlrm_8rank_v100", root / "dlrm_8rank_v100")
    return root


@pytest.fixture(scope="module")
def served(runs):
    """The address of the dashboard over these runs."""
    with serving(runs) as url:
        yield url


@pytest.fixture
def visit(browser, served):
    """``visit(page, run, …)``: that page, drawn to the end."""
    with opening(browser, served) as start:

        def go(page, run, scheme="light", **query):
            words = "".join(f"&{key}={value}" for key, value in query.items())
            tab = start(f"run={run}&page={page}{words}", scheme)
            settle(tab)
            return tab

        yield go


def words(tab):
    """The text of the page with plain spaces."""
    return plain(tab.inner_text("[data-testid=stMain]"))


@pytest.mark.parametrize(
    ("run", "scheme"),
    [("ddp", "light"), ("pipeline", "dark"), ("moe", "light"), ("dlrm_8rank_v100", "light"), ("dlrm_8rank_v100", "dark")],
)
def test_every_page_draws_without_an_error(visit, run, scheme):
    tab = visit("overview", run, scheme)
    for page in PAGES:
        tab.click(f"[data-testid=stSidebar] .stPageLink a:has-text('{page.title}')")
        tab.wait_for_selector(f".dt .title h1:text-is('{page.title}')", timeout=60_000)
        settle(tab)
        assert tab.query_selector("[data-testid=stException]") is None
        assert "page=" + page.slug in tab.evaluate("location.href")
    ground = tab.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 22, 28)")


def test_the_numbers_are_those_of_the_report(visit, runs):
    for run in ("ddp", "pipeline", "moe", "dlrm_8rank_v100"):
        told = document(study_of(dtprof.open_run(runs / run)))
        text = words(visit("overview", run))
        assert plain(told["verdict"]["verdict"]).lower() in text.lower()
        for finding in told["findings"]:
            assert plain(finding["title"]) in text
    for rank in told["ranks"]:
        assert plain(time(rank["steps"][0]["dur_ns"])) in text


def test_an_address_restores_page_rank_and_step(visit):
    tab = visit("overlap", "ddp", rank=1, step=6)
    assert boxes(tab)[:2] == ["rank 1", "step 6"]
    assert "rank 1, step 6" in tab.get_attribute("svg[role=img]", "aria-label")
    assert re.search(r"forward [\d.]+\sms.*backward [\d.]+\sms.*bucket 0", tab.text_content("svg[role=img]"))
    shown = tab.evaluate("location.search")
    again = tab.evaluate("location.href")
    tab.goto(again)
    settle(tab)
    assert tab.evaluate("location.search") == shown
    assert "rank 1, step 6" in tab.get_attribute("svg[role=img]", "aria-label")


def test_an_edit_changes_the_figure(visit):
    tab = visit("whatif", "pipeline")
    assert "Choose a change" in words(tab)
    tab.click("[data-testid=stSelectbox]:has-text('pipeline.balance') input")
    tab.click("[role=option]:has-text('even')")
    tab.wait_for_selector(".dt h2:text-matches('Predicted beside|Withheld')", timeout=60_000)
    assert "Replay error" in words(tab)


def test_a_value_may_be_typed_and_a_bad_one_is_explained(visit):
    tab = visit("whatif", "ddp")
    assert "Replay error" in words(tab)
    for typed, says in (("3.5", "net.bandwidth_scale=3.5"), ("<b>fast", "is no value of net.bandwidth_scale")):
        tab.fill("[data-testid=stSelectbox]:has-text('net.bandwidth_scale') input", typed)
        tab.keyboard.press("Enter")
        tab.wait_for_selector(f".dt :text('{says}')", timeout=60_000)
    assert tab.query_selector(".dt b:text-is('fast')") is None


def test_a_mark_leads_to_its_rank_and_step(visit):
    tab = visit("ranks", "ddp")
    tab.click("rect[data-go='page=timeline&rank=1&step=6']")
    tab.wait_for_selector(".dt .title h1:text-is('Timeline')", timeout=60_000)
    settle(tab)
    assert boxes(tab)[:2] == ["rank 1", "step 6"]
    assert "page=timeline" in tab.evaluate("location.href") and "rank=1&step=6" in tab.evaluate("location.search")
    tab.go_back()
    tab = visit("overview", "ddp", rank=0)
    tab.click("rect[data-go='step=5'] >> nth=0")
    tab.wait_for_selector(".dt p:has-text('Step 5,')", timeout=60_000)
    settle(tab)
    assert boxes(tab)[:2] == ["rank 0", "step 5"]
    tab.click("g[data-go='rank=1'] rect >> nth=0")
    tab.wait_for_selector(".dt p:has-text('one step of rank 1')", timeout=60_000)
    settle(tab)
    assert boxes(tab)[:2] == ["rank 1", "step 5"]


def test_two_that_start_in_the_same_second_both_come_up(runs):
    both = [
        subprocess.Popen([DTPROF, "dashboard", str(runs / name), "--json"], stdout=subprocess.PIPE, text=True)
        for name in ("ddp", "moe")
    ]
    try:
        told = [json.loads(process.stdout.readline()) for process in both]
        assert len({t["url"] for t in told}) == 2
        assert [Path(t["path"]).name for t in told] == ["ddp", "moe"]
        for answer in told:
            with urllib.request.urlopen(f"{answer['url']}/dtprof/alive", timeout=10) as served:
                assert int(served.read()) == answer["pid"]
    finally:
        for process in both:
            process.terminate()
        assert [process.wait(30) for process in both] == [130, 130]
        for process in both:
            process.stdout.close()


def test_clicks_during_a_slow_rerun_are_kept(visit):
    tab = visit("overview", "ddp")
    for nth in (1, 0, 1):
        tab.click("[data-testid=stMain] [data-testid=stSelectbox] >> nth=0")
        tab.click(f"[role=option] >> nth={nth}")
    tab.click("[data-testid=stMain] [data-testid=stSelectbox] >> nth=1")
    tab.click("[role=option] >> nth=2")
    settle(tab)
    assert boxes(tab)[:2] == ["rank 1", "step 5"]
    search = tab.evaluate("location.search")
    assert "rank=1" in search and "step=5" in search


def test_markup_in_a_name_stays_text(browser, tmp_path):
    write_run(evil_run(), tmp_path / "evil")
    tab = browser.new_page()
    dialogs = []
    tab.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    with serving(tmp_path) as url:
        for slug in ("kernels", "overview", "ranks"):
            tab.goto(f"{url}/?run=evil&page={slug}")
            settle(tab)
            assert tab.query_selector(".dt script") is None and tab.query_selector(".dt img") is None
            if slug == "kernels":
                assert EVIL in tab.inner_text("body")
        assert dialogs == []
        tab.close()


def test_an_empty_folder_helps(browser, tmp_path):
    tab = browser.new_page()
    with serving(tmp_path) as url:
        tab.goto(url)
        tab.wait_for_selector(".nothing", timeout=60_000)
        assert "dtprof job ddp" in tab.inner_text("body")
        tab.close()


def test_a_rank_that_is_missing_and_traces_that_are_cut_are_told_on_every_page(browser, runs, tmp_path):
    shutil.copytree(runs / "ddp", tmp_path / "missing")
    shutil.rmtree(tmp_path / "missing" / "part00001")
    shutil.copytree(runs / "ddp", tmp_path / "cut")
    os.truncate(tmp_path / "cut" / "part00001" / "trace.json.gz", 300)
    (tmp_path / "cut" / "manifest.json").write_text("{")
    told = {"missing": "1 of 2 ranks are missing (1)", "cut": "1 of 2 ranks have no step to account for (1)"}
    with serving(tmp_path) as url, opening(browser, url) as start:
        for run, sentence in told.items():
            for page in PAGES:
                tab = start(f"run={run}&page={page.slug}")
                settle(tab)
                assert tab.query_selector("[data-testid=stException]") is None
                assert tab.query_selector(".dt .verdict, .dt .nothing, .dt .big")
                if page.slug == "overview":
                    assert sentence in words(tab)
                tab.close()


def test_the_page_of_the_report_is_one_small_file_that_asks_for_nothing(browser, runs, tmp_path):
    file = tmp_path / "report.html"
    done = subprocess.run(
        [DTPROF, "report", str(runs / "dlrm_8rank_v100"), "--html", str(file), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert file.stat().st_size < 3_000_000
    tab, asked = browser.new_page(), []
    tab.on("request", lambda r: asked.append(r.url))
    tab.on("console", lambda m: asked.append(m.text))
    tab.goto(file.as_uri())
    assert asked == [file.as_uri()]
    told, text = json.loads(done.stdout), plain(tab.inner_text("body"))
    assert len(told["collectives"]) == 8 and len(tab.query_selector_all(".ops tbody tr")) >= 8
    assert {"Where the step goes", "Findings"} <= {plain(h.inner_text()) for h in tab.query_selector_all("h2")}
    for finding in told["findings"]:
        assert plain(finding["title"]) in text
    tab.close()

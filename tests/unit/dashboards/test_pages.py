"""Every page of every shape draws, says what is missing, and shows the numbers of ``report --json``."""

import re
import shutil

import pytest

import dtprof
from dtprof.advise.rules.comm_bandwidth import reached
from dtprof.analyse import study_of
from dtprof.numbers import Scale, percent, time
from dtprof.report.document import document
from dtprof.run import Manifest, MemoryStore, Part, Run, write_parquet
from dtprof.table import Table
from dtprof_dashboards.pages import PAGES
from tests.unit.advise.test_comm_rules import all_reduces, job
from tests.unit.dashboards.conftest import write_run
from tests.unit.model.test_fsdp import measured
from tests.unit.shapes import SHAPES

SLUGS = [page.slug for page in PAGES]
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def plain(text):
    """Words as ``Drawn.text`` has them."""
    return " ".join(text.replace("`", "").split())


# every page of the shapes that differ most; of the others the Overview here, and the rest among the slow tests
FEW = ("gloo_cpu", "three_of_eight", "pipeline_batches")
PAIRS = [(shape, slug) for shape in SHAPES for slug in SLUGS]
QUICK = [(shape, slug) for shape, slug in PAIRS if shape in FEW or slug == "overview"]


@pytest.mark.parametrize(("shape", "slug"), [pytest.param(*p, marks=[] if p in QUICK else pytest.mark.slow) for p in PAIRS])
def test_every_page_of_every_shape(draw, shapes, shape, slug):
    drawn = draw(shapes, page=slug, run=shape)
    assert f"<h1>{next(p.title for p in PAGES if p.slug == slug)}</h1>" in drawn.markup
    assert drawn.query["page"] == slug and drawn.query["run"] == shape
    assert "Traceback" not in drawn.text
    assert "VERDICT" in drawn.text or 'class="nothing"' in drawn.markup or slug == "whatif"


def test_the_overview_has_the_numbers_of_the_report(draw, shapes):
    study = study_of(dtprof.open_run(shapes / "gloo_cpu"))
    told = document(study)
    drawn = draw(shapes, page="overview", run="gloo_cpu")
    assert plain(told["verdict"]["verdict"]) in drawn.text
    steps = [s for rank in told["ranks"] for s in rank["steps"]]
    scale = Scale.of(s["dur_ns"] for s in steps)
    for rank in told["ranks"]:
        means = {k: sum(s["accounting"][k] for s in rank["steps"]) / len(rank["steps"]) for k in rank["steps"][0]["accounting"]}
        assert plain(time(sum(means.values()))) in drawn.text
        assert scale.text(means["compute_ns"]) in drawn.text
    for finding in told["findings"]:
        assert plain(finding["title"]) in drawn.text


def test_eight_ranks_of_a_real_trace(draw, truth):
    path = truth / "traces" / "kineto" / "dlrm_8rank_v100"
    told = document(study_of(dtprof.open_run(path)))
    overview = draw(path, page="overview")
    for rank in told["ranks"]:
        assert plain(time(rank["steps"][0]["dur_ns"])) in overview.text
    communication = draw(path, page="communication").text
    for operation in told["collectives"]:
        assert plain(time(operation["transfer_ns"])) in communication
        assert f"{operation['busbw_gb_s']:.2f}" in communication
    kernels = draw(path, page="kernels").text
    assert percent(told["kernels"]["short_share"]) in kernels
    for kernel in told["kernels"]["top"][:3]:
        assert kernel["name"][:60] in kernels


def test_the_units_of_fsdp_are_told_apart(draw, tmp_path):
    run, _ = measured(count=3)
    drawn = draw(write_run(run, tmp_path / "fsdp"), page="overlap")
    assert "Gathers and reductions under the step" in drawn.heads
    for unit in range(3):
        # freed after the forward pass, but for the last one's backward pass, which follows at once
        assert drawn.markup.count(f">gather blocks.{unit}<") == 2
        assert drawn.markup.count(f">reduce blocks.{unit}<") == 1


def test_what_links_allow_is_beside_what_was_reached_or_the_reason(draw, shapes):
    drawn = draw(shapes, page="communication", run="gloo_cpu")
    reasons = {r for r in reached(study_of(dtprof.open_run(shapes / "gloo_cpu"))).values() if isinstance(r, str)}
    assert "expected, GB/s" in drawn.text and reasons
    for reason in reasons:
        assert plain(reason) in drawn.text


def test_a_group_that_reaches_a_quarter_of_its_links(draw, tmp_path):
    """50 GB/s on eight A100, which were measured at about 200."""
    drawn = draw(write_run(job(8, all_reduces(50)), tmp_path / "slow"), page="communication")
    cells = re.search(
        r"all-reduce</td>.*?>50\.\d\d</td><td class=n>([\d.]+) to ([\d.]+)</td><td class=n>26%</td>", drawn.markup
    )
    assert cells and 150 < float(cells[1]) < 202 < float(cells[2]) < 250


def test_an_address_restores_what_it_shows(draw, shapes):
    first = draw(shapes, page="overview", run="gloo_cpu", rank="1", step="5")
    step = first.box("Step").options[1].removeprefix("step ")
    again = draw(shapes, page="overview", run="gloo_cpu", rank="1", step=step)
    assert again.box("Rank").value == 1 and again.box("Step").value == int(step)
    assert f"Step {step}," in again.text
    assert again.query == {"page": "overview", "run": "gloo_cpu", "rank": "1", "step": step}


def test_the_session_is_stronger_than_an_old_address(draw, shapes):
    drawn = draw(shapes, page="overview", run="gloo_cpu", rank="0")
    # the second click is sent before the address of the first has arrived
    drawn.box("Rank").set_value(1)
    drawn.tester.run()
    drawn.tester.query_params["rank"] = "0"
    next(s for s in drawn.tester.selectbox if s.label == "Step").set_value(drawn.box("Step").value)
    drawn.tester.run()
    assert next(s for s in drawn.tester.selectbox if s.label == "Rank").value == 1
    assert dict(drawn.tester.query_params)["rank"] in ("1", ["1"])


@pytest.mark.parametrize("value", ["99", "-1", "x", "1" * 40, EVIL])
def test_an_address_that_names_nothing_falls_back(draw, shapes, value):
    drawn = draw(shapes, page="ranks", run="gloo_cpu", rank=value, step=value)
    assert EVIL not in drawn.markup
    assert "Rank by step" in drawn.heads


@pytest.mark.parametrize("name", ["nowhere", "../..", "/etc", EVIL])
def test_a_run_that_is_not_listed_is_not_opened(draw, shapes, name):
    drawn = draw(shapes, page="overview", run=name)
    assert "Choose a run" in drawn.text and "There is no run" in drawn.text
    assert EVIL not in drawn.markup


def test_an_empty_folder_says_how_to_fill_it(draw, tmp_path):
    drawn = draw(tmp_path)
    assert "This folder holds no run" in drawn.text
    assert "dtprof job ddp --ranks 2" in drawn.text


def test_a_damaged_run_is_a_page_that_says_so(draw, shapes, tmp_path):
    shutil.copytree(shapes / "gloo_cpu", tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "broken" / "part00000").mkdir()
    drawn = draw(tmp_path, page="ranks")
    assert 'class="nothing"' in drawn.markup


def test_a_folder_that_is_no_run_is_named_with_what_tells_why(draw, shapes, tmp_path):
    shutil.copytree(shapes / "gloo_cpu", tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    drawn = draw(tmp_path, page="ranks", run="bad")
    assert "bad is no run that can be read" in drawn.text and f"dtprof report {tmp_path / 'bad'}" in drawn.text
    assert "1 other is here" in drawn.text
    alone = draw(tmp_path / "bad")
    assert "This folder holds no run" in alone.text and f"dtprof report {tmp_path / 'bad'}" in alone.text


def test_a_table_that_cannot_be_read_is_named(draw, shapes, tmp_path):
    shutil.copytree(shapes / "gloo_cpu", tmp_path / "broken")
    (tmp_path / "broken" / "tables" / "events" / "part00001.parquet").write_bytes(b"PAR1 no")
    drawn = draw(tmp_path, page="overview")
    assert "part00001.parquet" in drawn.text and "This run cannot be opened" in drawn.text


def test_a_rank_without_steps_is_named_beside_one_that_has_some(draw, shapes, tmp_path):
    shutil.copytree(shapes / "gloo_cpu", tmp_path / "half")
    write_parquet(Table.empty("steps"), tmp_path / "half" / "tables" / "steps" / "part00001.parquet")
    drawn = draw(tmp_path, page="overview")
    assert "1 of 2 ranks have no step to account for (1)" in drawn.text


def test_missing_ranks_are_named(draw, shapes):
    drawn = draw(shapes, page="overview", run="three_of_eight")
    assert "5 of 8 ranks are missing" in drawn.text
    assert "3 of 8 ranks" in drawn.text


def evil_run():
    events = {
        "ts": [0, 1000, 4000], "dur": [10_000, 2000, 3000], "kind": ["range", "kernel", "kernel"],
        "name": [EVIL, EVIL, f"x`{EVIL}`"], "lane": [0, 1, 1], "step": [1, 1, 1], "launch": [0, 0, 0],
    }  # fmt: skip
    tables = {
        ("events", 0): Table.of("events", **events),
        ("lanes", 0): Table.of(
            "lanes", id=[0, 1], device=[-1, 0], stream=[0, 7], name=[EVIL] * 2, role=["training", "compute"]
        ),
        ("steps", 0): Table.of("steps", step=[1], host_ts=[0], host_dur=[10_000], complete=[True], kind=["train"]),
        ("quality", 0): Table.of("quality", source=[EVIL], what=[EVIL], count=[1], effect=[EVIL]),
    }
    part = Part(ordinal=0, rank=0, host=EVIL, device=EVIL, backend=EVIL, source=EVIL)
    manifest = Manifest(job=EVIL, command=[EVIL], mesh={EVIL: 1}, coordinates={"0": {EVIL: 0}}, devices=[EVIL], parts=[part])
    return Run(manifest, MemoryStore(tables), "evil", "dtprof")


@pytest.mark.parametrize("slug", SLUGS)
def test_names_stay_text(draw, tmp_path, slug):
    write_run(evil_run(), tmp_path / "evil")
    drawn = draw(tmp_path, page=slug)
    assert "<script" not in drawn.markup and "<img" not in drawn.markup
    if slug == "kernels":
        assert EVIL in drawn.text or "&lt;script&gt;alert(1)" in drawn.markup


def test_two_runs_are_compared(draw, shapes):
    drawn = draw(shapes, page="compare", run="gloo_cpu", other="three_of_eight")
    assert drawn.query["other"] == "three_of_eight"
    assert "VERDICT" in drawn.text

"""Every page of runs as they are recorded: one of each kind of parallelism on this machine, and eight ranks of V100s."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.report.document import document
from dtprof_dashboards.pages import PAGES
from tests.unit.dashboards.test_pages import plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ("--layers", "4", "--dim", "64", "--seq", "32")
CAPTURED = ("--steps", "8", "--capture", "4:6")
# name of a run -> the words of its job
JOBS = {
    "ddp": ("ddp", "--inject", "slow_rank=1:20ms", *CAPTURED),
    "fsdp": ("fsdp", *CAPTURED),
    "pipeline": ("pipeline", *CAPTURED),
    "moe": ("moe", *CAPTURED),
    "context_parallel": ("context_parallel", *CAPTURED),
    "tensor_parallel": ("tensor_parallel", *CAPTURED),
    "parameter_server": ("parameter_server", "--ranks", "3", *CAPTURED),
    "hybrid": ("hybrid", "--ranks", "8", *SMALL, *CAPTURED),
}
V100 = "dlrm_8rank_v100"
# the pages that must show something of their own for a run, and neither be empty nor speak of another subject
OWN = {
    "ddp": ("overlap", "Buckets under the backward pass"),
    "fsdp": ("overlap", "Gathers and reductions under the step"),
    "pipeline": ("pipeline", "Stage by micro-batch"),
    "moe": ("moe", "Tokens per expert and layer"),
    "hybrid": ("pipeline", "Stage by micro-batch"),
    "parameter_server": ("ranks", "Rank by step"),
    "context_parallel": ("communication", "By group and operation"),
    "tensor_parallel": ("communication", "By group and operation"),
    V100: ("kernels", "By kind"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, truth):
    """A folder of these runs."""
    root = tmp_path_factory.mktemp("recorded")
    program = str(Path(sys.executable).with_name("dtprof"))
    for name, words in JOBS.items():
        done = subprocess.run([program, "job", *words, "--out", str(root / name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    os.symlink(truth / "traces" / "kineto" / V100, root / V100)
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.slug)
@pytest.mark.parametrize("run", [*JOBS, V100])
def test_every_page_draws(draw, recorded, run, page):
    drawn = draw(recorded, run=run, page=page.slug)
    assert f"<h1>{page.title}</h1>" in drawn.markup
    assert (drawn.query["page"], drawn.query["run"]) == (page.slug, run)
    assert "Traceback" not in drawn.text and "nan" not in drawn.text.lower().split()
    assert "VERDICT" in drawn.text or 'class="nothing"' in drawn.markup or page.slug in ("whatif", "plan")


@pytest.mark.parametrize("run", OWN)
def test_the_page_of_its_subject_shows_it(draw, recorded, run):
    slug, head = OWN[run]
    assert head in draw(recorded, run=run, page=slug).heads


@pytest.mark.parametrize("run", [*JOBS, V100])
def test_the_numbers_are_those_of_the_report(draw, recorded, run):
    told = document(study_of(dtprof.open_run(recorded / run)))
    overview, advice = draw(recorded, run=run, page="overview"), draw(recorded, run=run, page="advice")
    assert plain(told["verdict"]["verdict"]).lower() in overview.text.lower()
    for finding in told["findings"]:
        assert plain(finding["title"]) in overview.text and plain(finding["title"]) in advice.text


@pytest.mark.parametrize("run", [*JOBS, V100])
def test_every_rank_and_step_of_it_can_be_chosen(draw, recorded, run):
    ranks = dtprof.open_run(recorded / run).ranks
    for slug in ("overview", "overlap", "timeline", "communication"):
        first = draw(recorded, run=run, page=slug)
        if run == "parameter_server" and slug in ("overlap", "communication"):
            # remote procedure calls leave no operation in a trace
            assert 'class="nothing"' in first.markup
            continue
        step = first.box("Step").options[-1].removeprefix("step ")
        drawn = draw(recorded, run=run, page=slug, rank=str(ranks[-1]), step=step)
        assert drawn.query.get("step") == step
        if slug != "communication":
            assert drawn.box("Rank").value == ranks[-1]

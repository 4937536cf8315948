"""torch.compile under measurement: who compiled when and why, and nothing compiled because of us."""

import pytest

import dtprof
from dtprof.jsonl import read_lines
from dtprof_collectors.compile import CompileCollector


@pytest.fixture(scope="module")
def out(run, scripts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    run(2, [str(scripts / "compiled.py"), str(folder)])
    return folder


def lines(out, rank):
    return {r["step"]: r for r in read_lines(out / f"part0000{rank}" / "compile.jsonl")[0]}


def test_recompilations_are_those_of_the_rank_that_has_them_with_their_reason(out):
    rank0, rank1 = lines(out, 0), lines(out, 1)
    assert sorted(rank1) == [0], "hooks, ranges and captures of ours compile nothing"
    assert sorted(rank0) == [0, 4, 6]
    for step in (4, 6):
        # both halves of the broken graph, each with a new length
        assert rank0[step]["compiles"] == rank0[step]["recompiles"] == 2
        assert rank0[step]["compile_time"] > 0
        assert any("size mismatch" in reason or "size" in reason for reason in rank0[step]["reasons"])
    assert rank0[0]["recompiles"] == 0 and rank0[0]["compiles"] >= 2
    assert rank0[0]["graph_breaks"] >= 1 and rank0[0]["breaks"]


def test_steps_that_compile_are_no_training_steps_on_that_rank(out):
    kinds = [[r["kind"] for r in read_lines(out / f"part0000{r}" / "steps.jsonl")[0]] for r in (0, 1)]
    assert [step for step, kind in enumerate(kinds[0]) if kind == "warm-up"] == [0, 4, 6]
    assert [step for step, kind in enumerate(kinds[1]) if kind == "warm-up"] == [0]


def test_the_run_knows(out):
    run = dtprof.open_run(out)
    metrics = run.table("metrics", 0)
    again = metrics.take(metrics.is_("metric", "recompiles") & (metrics["value"] > 0))
    assert again["step"].tolist() == [4, 6]
    quality = run.table("quality", 0)
    assert any("recompiled: " in what for what in quality.text("what"))


def test_a_job_without_a_compiler_has_no_file(tmp_path):
    with dtprof.profile(tmp_path, capture=None, collectors=[CompileCollector]) as prof:
        prof.step()
    assert sorted(p.name for p in (tmp_path / "part00000").iterdir()) == ["part.json", "steps.jsonl"]

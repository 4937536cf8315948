"""What goes out through a format and comes back is the run that it was."""

import shutil
import sqlite3
from collections import Counter

import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.errors import DamagedRun
from dtprof.export import export_run
from dtprof.export.window import cut
from dtprof.ingest.nsys.reader import NsysReader
from tests.unit.export.samples import differences, hostile
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

FILES = (
    "a100_rank0of2_collective_args_ns.json.gz", "cpu_gloo_rank34of300.json.gz", "vllm_cuda_graph_execution.json.gz",
    "mi250_small_train.json.gz", "no_rank.json.gz", "dlrm_8rank_v100",
)  # fmt: skip
LARGE = (
    "a100_rank3of8_allreduce_alltoall.json.gz",
    "b200_rank0of8_71_groups_multimem.json.gz",
    "h100_qwen_0.5b.json.gz",
    "mi300x_rank0of8_ddp_resnet.json.gz",
    "v100_ns_resolution.json.gz",
    "v100_rank1of2_allreduce_alltoall.json.gz",
)


def accounts(run):
    return [(p.rank, p.device, p.host, p.steps) for p in study_of(run).result("accounting").parts]


def who(run):
    return [(p.rank, p.attempt, p.window, p.pid, p.host, p.clock_offset_ns) for p in run.parts]


def through_nsys(run, folder):
    export_run(run, ["nsys"], folder)
    back = dtprof.open_run(folder / "nsys")
    assert differences(run, back, skip=()) == []
    assert accounts(back) == accounts(run)
    assert who(back) == who(run)
    assert back.manifest.mesh == run.manifest.mesh


@pytest.mark.parametrize("name", FILES)
def test_kineto_through_nsys(truth, tmp_path, name):
    through_nsys(dtprof.open_run(truth / "traces" / "kineto" / name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_kineto_through_nsys(truth, tmp_path, name):
    through_nsys(dtprof.open_run(truth / "traces" / "kineto" / name), tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_made_runs_through_nsys(tmp_path, name):
    through_nsys(matched(SHAPES[name]()), tmp_path)


def test_any_names_through_nsys(tmp_path):
    through_nsys(hostile(), tmp_path)


def test_one_rank_of_a_run_that_was_exported_whole(truth, tmp_path):
    run = dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")
    export_run(run, ["nsys"], tmp_path)
    back = dtprof.open_run(tmp_path / "nsys" / "dlrm_8rank_v100_rank00003.sqlite")
    assert back.ranks == [3]
    assert accounts(back)[0][1] == accounts(run)[3][1]
    assert set(back.table("collectives")["n_present"].tolist()) == {1}


def plain(folder):
    """The reports without what only dtprof reads."""
    for path in folder.glob("*.sqlite"):
        with sqlite3.connect(path) as database:
            database.execute("DROP TABLE DTPROF_TABLES")
            database.execute("DROP TABLE DTPROF_ABOUT")
    for path in folder.glob("*_pqtdir"):
        shutil.rmtree(path)
    return NsysReader().read(folder, {"cache": False})


@pytest.mark.parametrize("name", FILES)
def test_the_columns_of_nsys_alone_are_right(truth, tmp_path, name):
    run = dtprof.open_run(truth / "traces" / "kineto" / name)
    export_run(run, ["nsys"], tmp_path)
    back = plain(tmp_path / "nsys")
    assert [p[1:] for p in accounts(back)] == [p[1:] for p in accounts(run)]
    for mine, theirs in zip(run.parts, back.parts, strict=True):
        before, after = run.table("events", mine.ordinal), back.table("events", theirs.ordinal)
        spans = [Counter(zip(t.text("kind"), t["ts"].tolist(), t["dur"].tolist(), strict=True)) for t in (before, after)]
        lost, more = spans[0] - spans[1], spans[1] - spans[0]
        # ranges on a stream have no place in nsys; NCCL's own are added
        assert {kind for kind, _, _ in lost} <= {"range"} and {kind for kind, _, _ in more} <= {"range"}
        assert sum(more.values()) == len(run.table("comm", mine.ordinal)) or not before.is_("kind", "kernel").any()
        assert run.table("comm", mine.ordinal).text("op") == back.table("comm", theirs.ordinal).text("op")


# lanes are numbered anew, a kernel's record names its operation in other words, what torch does not write is not written
CHROME = ("quality", "lanes", "groups", "comm", "steps", "samples", "memory", "metrics", "collectives", "participations")


@pytest.mark.parametrize("name", FILES)
def test_kineto_through_chrome(truth, tmp_path, name):
    run = dtprof.open_run(truth / "traces" / "kineto" / name)
    export_run(run, ["chrome"], tmp_path)
    back = dtprof.open_run(tmp_path / "chrome")
    assert {d for d in differences(run, back, CHROME) if d[2] != "lane"} == set()
    assert accounts(back) == accounts(run)
    for mine, theirs in zip(run.parts, back.parts, strict=True):
        assert run.table("comm", mine.ordinal).text("op") == back.table("comm", theirs.ordinal).text("op")


def test_a_window_that_went_through_nsys(truth, tmp_path):
    run = dtprof.open_run(truth / "traces" / "kineto" / "v100_ns_resolution.json.gz")
    steps = run.table("steps", 0)["step"].tolist()
    from dtprof.export.window import Span

    window = cut(run, steps=Span(steps[1], steps[3]))
    through_nsys(window, tmp_path)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    export_run(hostile(), ["nsys"], tmp_path / "a")
    (path, *_) = (tmp_path / "a" / "nsys").glob("*.sqlite")
    shutil.copy(path, path.with_name("other.sqlite"))
    with pytest.raises(DamagedRun, match="same process of a run"):
        dtprof.open_run(tmp_path / "a" / "nsys")


def test_damage_in_our_tables_is_one_line(tmp_path):
    export_run(hostile(), ["nsys"], tmp_path)
    (path, *_) = (tmp_path / "nsys").glob("*.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE DTPROF_TABLES SET parquet = x'00'")
    with pytest.raises(DamagedRun, match=path.name):
        dtprof.open_run(tmp_path / "nsys")

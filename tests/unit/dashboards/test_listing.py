"""Which runs are found, and when one has changed."""

import os

from dtprof_dashboards.listing import LARGE, entries, is_run, watermark


def names(root):
    return sorted(entry.name for entry in entries(root))


def test_runs_one_and_two_folders_down(shapes, tmp_path):
    os.symlink(shapes / "gloo_cpu", tmp_path / "near")
    (tmp_path / "jobs").mkdir()
    os.symlink(shapes / "simulated", tmp_path / "jobs" / "far")
    (tmp_path / ".hidden").mkdir()
    os.symlink(shapes / "simulated", tmp_path / ".hidden" / "run")
    (tmp_path / "notes.txt").write_text("nothing")
    assert names(tmp_path) == ["jobs/far", "near"]


def test_a_run_is_its_own_list(shapes):
    assert names(shapes / "gloo_cpu") == ["."]


def test_a_folder_of_traces_is_one_run_and_a_file_another(truth):
    folder = truth / "traces" / "kineto" / "dlrm_8rank_v100"
    assert names(folder) == ["."]
    assert is_run(next(folder.glob("worker0*")))


def test_a_stray_trace_does_not_hide_the_runs_beside_it(shapes, truth, tmp_path):
    os.symlink(shapes / "gloo_cpu", tmp_path / "mine")
    os.symlink(next((truth / "traces" / "kineto" / "dlrm_8rank_v100").glob("worker0*")), tmp_path / "trace.json.gz")
    assert names(tmp_path) == ["mine", "trace.json.gz"]


def test_of_snapshots_each_file_is_a_run(truth, tmp_path):
    (tmp_path / "memory").mkdir()
    for name in ("snap_p2.pickle", "snap_p5.pickle"):
        os.symlink(truth / "cases" / name, tmp_path / "memory" / name)
    assert names(tmp_path) == ["memory/snap_p2.pickle", "memory/snap_p5.pickle"]
    assert names(tmp_path / "memory") == ["snap_p2.pickle", "snap_p5.pickle"]
    assert names(tmp_path / "memory" / "snap_p2.pickle") == ["."]


def test_a_large_run_is_listed_with_its_size(shapes, tmp_path):
    os.symlink(shapes / "gloo_cpu", tmp_path / "small")
    with (tmp_path / "trace.json").open("wb") as file:
        file.write(b'{"traceEvents": []}')
        file.truncate(LARGE)
    assert sorted(entry.label.replace("\u00a0", " ") for entry in entries(tmp_path)) == ["small", "trace.json · 10.0 MB"]


def test_an_empty_folder_and_one_that_may_not_be_read(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o000)
    assert names(tmp_path) == []


def test_the_watermark_follows_what_is_written(tmp_path):
    (tmp_path / "part00000").mkdir()
    file = tmp_path / "part00000" / "steps.jsonl"
    file.write_text("1\n")
    before = watermark(tmp_path)
    assert watermark(tmp_path) == before
    file.write_text("1\n2\n")
    assert watermark(tmp_path) != before
    assert watermark(tmp_path / "gone") == ()

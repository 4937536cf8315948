"""Files that are cut, locked, empty, foreign, or still to be exported: one clear line, or what can be read."""

import os
import random
import shutil
import sqlite3
import stat

import pytest

import dtprof
from dtprof.cli import main
from dtprof.errors import DtprofError, InputError, MissingExtra, NotATrace
from tests.unit.ingest.nsys.maker import Report, losses, opened


def long_report(count=3000):
    report = Report()
    for i in range(count):
        report.run(f"gemm_{i % 7}", i * 1000 + 10, i * 1000 + 100, i * 1000 + 600)
    return report


def line_of(path, capsys):
    assert main(["report", str(path)]) == 3
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and path.name in said[0], said
    return said[0]


def test_an_empty_file(tmp_path, capsys):
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"")
    assert "the file is empty" in line_of(path, capsys)


def test_a_file_that_is_none(tmp_path, capsys):
    path = tmp_path / "x.sqlite"
    path.write_bytes(bytes(range(256)) * 20)
    assert "not an SQLite database (at byte 0)" in line_of(path, capsys)


def test_a_foreign_database_names_its_tables(tmp_path, capsys):
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE urls (x INTEGER)")
    database.close()
    assert "no Nsight Systems export (tables: urls)" in line_of(path, capsys)
    with pytest.raises(NotATrace):
        dtprof.open_run(path)


def test_an_export_without_events(tmp_path, capsys):
    path = Report().write(tmp_path / "x.sqlite")
    assert "without any events" in line_of(path, capsys)


def test_an_export_whose_event_tables_are_empty(tmp_path, capsys):
    report = Report()
    report.rows["CUPTI_ACTIVITY_KIND_KERNEL"] = []
    assert "no CUDA or NVTX events" in line_of(report.write(tmp_path / "x.sqlite"), capsys)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_cut_file_is_read_as_far_as_it_goes(tmp_path, share):
    whole = long_report().write(tmp_path / "whole.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * share)])
    run = opened(path)
    said = losses(run)
    assert any("the file is cut off" in what for what, _ in said)
    events = run.table("events", 0)
    assert 0 < len(events) < 6000
    full = opened(tmp_path / "whole.sqlite").table("events", 0)
    known = set(zip(full["ts"].tolist(), full["dur"].tolist(), strict=True))
    assert set(zip(events["ts"].tolist(), events["dur"].tolist(), strict=True)) <= known


@pytest.mark.parametrize("size", [1, 50, 100, 3000])
def test_a_stump_is_one_clear_line(tmp_path, capsys, size):
    path = tmp_path / "x.sqlite"
    path.write_bytes(long_report(50).write(tmp_path / "whole.sqlite").read_bytes()[:size])
    line_of(path, capsys)


def test_a_locked_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("dtprof.ingest.nsys.database._LOCK_WAIT_S", 0.05)
    path = long_report(50).write(tmp_path / "x.sqlite")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert "locked" in line_of(path, capsys)
    finally:
        writer.close()
    assert len(opened(path).table("events", 0)) == 100


def test_a_write_ahead_log_is_read_with_the_file_and_nothing_is_written_beside(tmp_path):
    path = tmp_path / "x.sqlite"
    writer = long_report(50).write(path, journal="WAL", leave_open=True)
    try:
        before = {p.name: p.stat().st_size for p in tmp_path.iterdir()}
        assert before["x.sqlite-wal"]
        run = opened(path)
        assert len(run.table("events", 0)) == 100
        assert any("write-ahead log" in what for what, _ in losses(run))
        assert {p.name: p.stat().st_size for p in tmp_path.iterdir()} == before
    finally:
        writer.close()
    assert len(opened(path).table("events", 0)) == 100


def test_nothing_is_written_beside_a_report(tmp_path):
    path = long_report(50).write(tmp_path / "x.sqlite")
    before = (path.read_bytes(), sorted(os.listdir(tmp_path)))
    dtprof.open_run(path)
    assert (path.read_bytes(), sorted(os.listdir(tmp_path))) == before


def test_a_bad_report_does_not_cost_the_others(tmp_path):
    for rank in range(2):
        long_report(20).write(tmp_path / f"r_rank{rank}.sqlite")
    (tmp_path / "r_rank2.sqlite").write_bytes(b"")
    run = opened(tmp_path)
    assert run.ranks == [0, 1]
    assert any("the file is empty" in what for what, _ in losses(run))


def test_impossible_spans_are_named_and_left_out(tmp_path):
    report = long_report(20)
    report.kernel("gemm_0", 5000, 4000).kernel("gemm_0", 7000, None)
    report.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["end"] = -1
    run = opened(report.write(tmp_path / "x.sqlite"))
    assert run.table("events", 0).is_("kind", "kernel").sum() == 20
    assert any(what == "spans without a usable start or duration" for what, _ in losses(run))


def test_columns_and_tables_of_other_versions(tmp_path):
    report = long_report(20)
    for row in report.rows["CUPTI_ACTIVITY_KIND_KERNEL"]:
        for name in ("gridX", "graphNodeId", "shortName", "registersPerThread", "dynamicSharedMemory"):
            row.pop(name, None)
    path = report.write(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as database:
        for name in ("gridX", "graphNodeId", "shortName", "registersPerThread", "dynamicSharedMemory"):
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {name}")
        database.execute("DROP TABLE StringIds")
        database.execute("DROP TABLE TARGET_INFO_SESSION_START_TIME")
    database.close()
    run = opened(path)
    events = run.table("events", 0)
    assert events.is_("kind", "kernel").sum() == 20 and events["ts"].min() == 10
    assert "string 1" in events.values("name")
    assert any(what == "no session start is recorded" for what, _ in losses(run))


def fake_nsys(folder, body):
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_a_report_without_nsys_says_what_to_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "my run.nsys-rep"
    path.write_bytes(b"report")
    with pytest.raises(MissingExtra) as caught:
        dtprof.open_run(path)
    assert "nsys export --type sqlite --output 'my run.sqlite' 'my run.nsys-rep'" in caught.value.hint
    assert main(["report", str(path)]) == 4
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_report_is_exported_once_into_the_cache(tmp_path, monkeypatch):
    export = long_report(20).write(tmp_path / "made.sqlite")
    calls = tmp_path / "calls"
    body = f'echo "$@" >> {calls}\nwhile [ "$1" != "--output" ]; do shift; done\n{shutil.which("cp")} {export} "$2"'
    fake_nsys(tmp_path / "bin", body)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    job = tmp_path / "job"
    job.mkdir()
    (job / "r_rank3.nsys-rep").write_bytes(b"report")
    for _ in range(2):
        run = dtprof.open_run(job)
        assert run.ranks == [3] and len(run.table("events", 0)) == 40
    assert len(calls.read_text().splitlines()) == 1 and "--include-blobs true" in calls.read_text()
    assert sorted(os.listdir(job)) == ["r_rank3.nsys-rep"]


def test_an_export_that_fails_says_why(tmp_path, monkeypatch):
    fake_nsys(tmp_path / "bin", "echo 'Unsupported version of the report' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    path = tmp_path / "x.nsys-rep"
    path.write_bytes(b"report")
    with pytest.raises(InputError, match="Unsupported version of the report"):
        dtprof.open_run(path)


def test_the_cache_gives_the_same_run(tmp_path):
    path = tmp_path / "x.sqlite"
    report = Report()
    for pid in (500, 501):
        for i in range(7000):
            report.run(f"gemm_{i % 7}_" + "x" * 60, i * 1000 + 10, i * 1000 + 100, i * 1000 + 600, pid)
    report.write(path)
    assert path.stat().st_size > 1_000_000
    first, again = dtprof.open_run(path), dtprof.open_run(path)
    assert [p.extra for p in first.parts] == [p.extra for p in again.parts] and again.ranks == [0, 1]
    for part in (0, 1):
        a, b = first.table("events", part), again.table("events", part)
        assert len(a) == 14_000 and all((a[c] == b[c]).all() for c in ("ts", "dur", "kind", "lane", "launch"))
        assert a.text("name") == b.text("name")


def test_a_report_with_bytes_turned_over_opens_or_is_refused_in_one_line(tmp_path):
    report = Report()
    for i in range(120):
        report.run(f"gemm{i % 7}", i * 1000 + 10, i * 1000 + 100, i * 1000 + 600, pid=1000 + 1000 * (i % 2), gridX=1 + 17 * i)
        report.range("train_step", i * 1000, i * 1000 + 990)
    data = report.write(tmp_path / "whole.sqlite", page=1024).read_bytes()
    chance, read, refused = random.Random(1), 0, []
    for _ in range(80):
        broken = bytearray(data)
        at = chance.choice([100, chance.randrange(100, len(data) - 2000)])
        for place in range(at, at + chance.randrange(1, 2000)):
            broken[place] = chance.randrange(256)
        path = tmp_path / "broken.sqlite"
        path.write_bytes(broken)
        try:
            read += len(opened(path).parts) > 0
        except DtprofError as error:
            refused.append(error.message)
    assert read + len(refused) == 80 and read
    assert all("\n" not in message and path.name in message for message in refused)


def test_a_device_that_cannot_be_is_taken_for_the_first(tmp_path):
    report = Report()
    report.run("gemm", 10, 100, 600).run("gemm", 1010, 1100, 1600, device=2**40)
    run = opened(report.write(tmp_path / "x.sqlite"))
    lanes = run.table("lanes", 0)
    assert lanes["device"][lanes["device"] >= 0].tolist() == [0]

"""Our own run directories after everything that can happen to them: what is there counts, what is lost is named."""

from __future__ import annotations

import json
import os
import shutil

import msgspec
import pytest

import dtprof
from dtprof.analyse import study_of
from dtprof.errors import DamagedRun
from dtprof.report.budget import no_steps
from dtprof.report.document import document
from dtprof.report.facts import gather
from dtprof.report.missing import missing
from dtprof.run import Part, write_json, write_manifest
from tests.unit.kineto_maker import Trace, quality

RANKS = 2


def record(folder):
    """Two ranks with three traced steps each, ended as they should."""
    for rank in range(RANKS):
        part = folder / f"part{rank:05d}"
        part.mkdir(parents=True)
        t, lines = Trace(rank, RANKS), []
        for step in range(3):
            at = 1000 * step
            t.step(step, at, at + 1000)
            t.run("gemm", at + 10, at + 20, at + 500 + rank)
            lines.append({"step": step, "host_ts": at, "host_dur": 1_000_000, "captured": True, "kind": "train", "loss": 0.5})
        t.write(part / "trace.json")
        (part / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        me = Part(ordinal=rank, rank=rank, world_size=RANKS, host="n", pid=9 + rank, extra={"ended_ns": 1, "started_ns": 0})
        write_json(part / "part.json", msgspec.to_builtins(me))
    return folder


def said(folder):
    whole = document(study_of(dtprof.open_run(folder)))
    return json.loads(json.dumps(whole))


@pytest.fixture
def run(tmp_path):
    return record(tmp_path / "run")


def test_tables_may_lose_any_file_at_any_time(run):
    before = said(run)
    files = [f for f in (run / "tables").rglob("*") if f.is_file()]
    assert len(files) > 5
    for file in files:
        file.unlink()
        assert said(run) == before
        assert file.exists(), "kept again"
        file.write_bytes(file.read_bytes()[:-9])
        assert said(run) == before


def test_tables_without_their_parts_are_refused_in_words(run):
    manifest = dtprof.open_run(run).manifest
    manifest.parts = manifest.parts[:1]
    write_manifest(run / "manifest.json", manifest)
    for rank in range(RANKS):
        shutil.rmtree(run / f"part{rank:05d}")
    with pytest.raises(DamagedRun, match="of 2 processes in its tables the manifest lacks 1"):
        dtprof.open_run(run)


def test_tables_of_an_earlier_reading_do_not_come_back(run):
    said(run)
    alien = run / "tables" / "allocations" / "part00000.parquet"
    alien.parent.mkdir(exist_ok=True)
    alien.write_bytes((run / "tables" / "events" / "part00000.parquet").read_bytes())
    os.utime(run / "part00000" / "steps.jsonl", (1, 1))
    assert len(dtprof.open_run(run).table("allocations", 0)) == 0
    assert not alien.exists()


def test_a_traced_step_whose_line_was_lost_is_kept(run):
    lines = (run / "part00000" / "steps.jsonl").read_text().splitlines()
    (run / "part00000" / "steps.jsonl").write_text(lines[0] + "\n" + lines[1][:20])
    opened = dtprof.open_run(run)
    assert opened.table("steps", 0)["step"].tolist() == [0, 1, 2]
    assert opened.table("steps", 0)["captured"].all()
    assert any(what == "torn lines" for what, _ in quality(opened))


def test_a_traced_step_that_the_loop_left_unfinished_is_no_step(run):
    lines = (run / "part00000" / "steps.jsonl").read_text().splitlines()
    (run / "part00000" / "steps.jsonl").write_text("\n".join(lines[:2]) + "\n")
    assert dtprof.open_run(run).table("steps", 0)["step"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "line",
    ['{"step": "1", "host_ts": 0, "host_dur": 1}', '{"step": 1, "host_ts": 1e40, "host_dur": 1}', "[1]", '{"step": 1}',
     '{"step": 1, "host_ts": 0, "host_dur": -5}', '{"step": 99999999999, "host_ts": 0, "host_dur": 5}', "\x00\xff"],
)  # fmt: skip
def test_a_line_that_no_step_can_be_counts_as_torn(run, line):
    with (run / "part00000" / "steps.jsonl").open("a", encoding="latin-1") as file:
        file.write(line + "\n")
    opened = dtprof.open_run(run)
    assert opened.table("steps", 0)["step"].tolist() == [0, 1, 2]
    assert ("torn lines", 1) in quality(opened)


@pytest.mark.parametrize(
    "line", ['{"group": 5}', '{"ranks": ["a"]}', '{"bytes_in": "x"}', '{"created_ns": 1e30}', '{"op": []}']
)
def test_an_operation_that_is_none_costs_only_itself(run, line):
    (run / "part00001" / "collectives.jsonl").write_text(line + "\n")
    assert ("torn lines", 1) in quality(dtprof.open_run(run))


@pytest.mark.parametrize(
    "change", [{"rank": -3}, {"rank": 10**30}, {"world_size": 2**40}, {"rank": "0"}, {"extra": []}], ids=lambda c: str(c)[:20]
)
def test_a_part_that_describes_no_process_is_rebuilt_from_its_folder(run, change):
    path = run / "part00001" / "part.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    opened = dtprof.open_run(run)
    assert opened.ranks == [0, 1]
    assert any(what == "missing or unreadable" for what, _ in quality(opened))


def test_an_own_cost_without_numbers_is_not_known(run):
    write_manifest(run / "manifest.json", dtprof.open_run(run).manifest)
    whole = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**whole, "own_cost": {"other": 1.0}}))
    assert "own cost not known" in said(run)["verdict"]["header"]


def test_steps_that_were_timed_but_never_traced_are_not_called_unmarked(run):
    for rank in range(RANKS):
        part = run / f"part{rank:05d}"
        (part / "trace.json").unlink()
        (part / "steps.jsonl").write_text(
            "".join(json.dumps({"step": i, "host_ts": i * 10**9, "host_dur": 10**7, "kind": "train"}) + "\n" for i in range(5))
        )
    told = said(run)["verdict"]
    assert told["verdict"].replace("\u00a0", " ") == "5 steps timed, median 10.0 ms; nothing inside a step is recorded"
    assert "marked" not in " ".join([told["why"], *told["next"]])
    facts = gather(study_of(dtprof.open_run(run)))
    assert "timed but not traced" in no_steps(facts)
    assert "No step was traced" in [row.what for row in missing(facts)]


def test_what_may_not_be_read_is_named_and_the_rest_is_there(run, monkeypatch):
    closed, lines = run / "part00001", run / "part00000" / "steps.jsonl"
    may, read = os.access, type(lines).read_bytes
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(closed) and may(path, mode))

    def refuse(path):
        if path == lines:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(type(lines), "read_bytes", refuse)
    opened = dtprof.open_run(run)
    assert opened.ranks == [0]
    assert opened.table("steps", 0)["step"].tolist() == [0, 1, 2]
    told = dict(quality(opened))
    assert told["the folder may not be read"] == 1 and told["cannot be read: Permission denied"] == 1


def test_a_manifest_that_comes_back_is_not_called_missing(run):
    assert any("manifest.json: missing" in what for what, _ in quality(dtprof.open_run(run)))
    write_manifest(run / "manifest.json", dtprof.open_run(run).manifest)
    assert not any("manifest" in what for what, _ in quality(dtprof.open_run(run)))


def test_own_cost_is_read_from_the_part_where_the_manifest_is_lost(run):
    path = run / "part00000" / "part.json"
    whole = json.loads(path.read_text())
    whole["extra"]["own_cost"] = {"fraction": 0.01, "low": 0.005, "high": 0.02, "steps": 9}
    path.write_text(json.dumps(whole))
    assert "own cost 1.0% (bound 2.0%)" in said(run)["verdict"]["header"]

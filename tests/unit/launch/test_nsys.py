"""The command line of nsys, and what is said of what it recorded, with a program that stands in for it."""

import sqlite3
import stat

import pytest

from dtprof.cli import main
from dtprof.errors import MissingExtra
from dtprof.launch import nsys
from dtprof.launch.nsys import Nsys

OLD = Nsys("/usr/bin/nsys", (2022, 4, 2, 1))
NEW = Nsys("/usr/bin/nsys", (2025, 5, 2))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """``program(script)``: an ``nsys`` on PATH that does what the script says."""

    def make(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        path = folder / "nsys"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return path

    return make


def test_it_is_found_with_its_version(program):
    path = program("echo 'NVIDIA Nsight Systems version 2022.4.2.1-df9881f'")
    assert nsys.find() == Nsys(str(path), (2022, 4, 2, 1))


def test_without_it_the_command_ends_with_4_and_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--nsys", "--", "python", "train.py"]) == 4
    error = capsys.readouterr().err
    assert "apt-get install -y --no-install-recommends nsight-systems" in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be_run(program):
    path = program("")
    path.write_bytes(b"\x7fELF nothing")
    with pytest.raises(MissingExtra, match="cannot be run"):
        nsys.find()


def test_a_job_on_cpus_is_recorded_whole_without_sampling(tmp_path):
    words = nsys.command_line(OLD, ["torchrun", "a.py"], tmp_path, {}, gpu=False, capture=True)
    assert words[:2] == ["/usr/bin/nsys", "profile"]
    assert words[-2:] == ["torchrun", "a.py"]
    assert words[words.index("--trace") + 1] == "nvtx"
    assert words[words.index("--sample") + 1] == words[words.index("--cpuctxsw") + 1] == "none"
    assert "--capture-range" not in words


@pytest.mark.parametrize(("capture", "framed"), [(True, True), (False, False)])
def test_on_a_gpu_our_window_is_recorded(tmp_path, capture, framed):
    words = nsys.command_line(NEW, ["python", "a.py"], tmp_path, {}, gpu=True, capture=capture)
    assert words[words.index("--trace") + 1] == "cuda,nvtx"
    assert ("--capture-range" in words) == framed
    if framed:
        assert words[words.index("--capture-range") + 1] == "cudaProfilerApi"


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"RANK": "3"}, "rank%q{RANK}"),
        ({"SLURM_PROCID": "3"}, "rank%q{SLURM_PROCID}"),
        ({}, "report_%h"),
        ({"RANK": ""}, "report_%h"),
    ],
)
def test_reports_are_named_after_the_rank(environment, name):
    assert nsys.report_name(environment) == name


@pytest.mark.parametrize(
    ("found", "installed", "said"),
    [
        (OLD, "0.2.11", ""),
        (OLD, "0.2.12", "records no ranges under nsys 2022.4"),
        (OLD, "0.2.17", "pip install 'nvtx<0.2.12'"),
        (NEW, "0.2.17", ""),
        (NEW, "", "nvtx is not installed"),
    ],
)
def test_versions_that_do_not_fit_are_said_before(monkeypatch, found, installed, said):
    monkeypatch.setattr(nsys, "nvtx_version", lambda: installed)
    assert said in nsys.doubt(found)
    assert bool(nsys.doubt(found)) == bool(said)


def report(folder, domain, ranges):
    """A report whose export already lies beside it."""
    folder.mkdir(exist_ok=True)
    (folder / "rank0.nsys-rep").write_bytes(b"report")
    with sqlite3.connect(folder / "rank0.sqlite") as database:
        database.execute("CREATE TABLE NVTX_EVENTS (eventType, text, domainId, globalTid)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (75, ?, 1, 16777217)", (domain,))
        database.executemany("INSERT INTO NVTX_EVENTS VALUES (59, 'forward', 1, 16777218)", [()] * ranges)
    database.close()
    return folder


def test_a_report_without_our_ranges_is_said_afterwards(program, tmp_path):
    there = nsys.Nsys(str(program("exit 0")), (2022, 4))
    assert nsys.verdict(there, report(tmp_path / "a", "dtprof", 3), measured=True) == ""
    assert "holds no range of ours" in nsys.verdict(there, report(tmp_path / "b", "dtprof", 0), measured=True)
    assert "holds no range of ours" in nsys.verdict(there, report(tmp_path / "c", "other", 3), measured=True)
    assert nsys.verdict(there, report(tmp_path / "d", "dtprof", 0), measured=False) == ""


def test_a_report_that_is_missing_is_said(program, tmp_path):
    there = nsys.Nsys(str(program("exit 1")), (2022, 4))
    assert "wrote no report" in nsys.verdict(there, tmp_path, measured=True)
    (tmp_path / "x.qdstrm").write_bytes(b"")
    assert "importer" in nsys.verdict(there, tmp_path, measured=True)


def test_a_report_that_cannot_be_exported_counts_as_empty(program, tmp_path):
    there = nsys.Nsys(str(program("exit 1")), (2022, 4))
    (tmp_path / "rank0.nsys-rep").write_bytes(b"x")
    assert "no range of ours" in nsys.verdict(there, tmp_path, measured=True)
    (tmp_path / "rank0.sqlite").write_bytes(b"x" * 100)
    assert "no range of ours" in nsys.verdict(there, tmp_path, measured=True)


def test_collectors():
    assert nsys.collectors(None, ["ddp", "nsys", "torch_profiler"]) == ["ddp", "nsys"]
    assert nsys.collectors(["host"], ["ddp", "nsys"]) == ["host", "nsys"]

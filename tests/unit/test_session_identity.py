import os
import subprocess
import sys

import msgspec
import pytest

import dtprof
from dtprof.run import Part
from dtprof.session.folder import PartFolder, describe
from dtprof.session.identity import identify, run_key
from tests.unit.test_session import nothing_set  # noqa: F401 - a fixture that every test here uses


@pytest.mark.parametrize(
    ("environment", "rank", "size", "origin"),
    [
        ({}, 0, 1, "nothing set"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8, "RANK"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4, "SLURM_PROCID"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0"}, 1, 2, "OMPI_COMM_WORLD_RANK"),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, 5, 6, "PMI_RANK"),
        ({"RANK": "x", "SLURM_PROCID": "1"}, 1, 2, "SLURM_PROCID"),
    ],
)
def test_the_rank_comes_from_the_best_source(monkeypatch, environment, rank, size, origin):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    who = identify()
    assert (who.rank, who.world_size, who.rank_from) == (rank, size, origin)


def test_one_slurm_id_for_all_children_loses_to_rank_and_is_noted(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        found.append(identify())
    assert [w.rank for w in found] == [0, 1, 2, 3]
    assert [w.conflict for w in found] == ["", *["SLURM_PROCID=0 disagrees"] * 3]


def test_processes_of_one_run_share_a_key(monkeypatch):
    alone = run_key()
    assert str(os.getpid()) in alone
    monkeypatch.setenv("MASTER_ADDR", "a")
    monkeypatch.setenv("MASTER_PORT", "1")
    first = run_key()
    monkeypatch.setenv("MASTER_PORT", "2")
    assert run_key() not in (alone, first)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert run_key() == "a:2::"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "id")
    assert run_key() == "id"


def claim(out, key="k"):
    return PartFolder(out, identify(), key, 0)


def owned_by(folder, **fields):
    part = Part(**{"ordinal": 0, "host": identify().host, "pid": 1, "extra": {"run_key": "k", "ended_ns": None}, **fields})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "part.json").write_bytes(msgspec.json.encode(part))


def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_a_restarted_rank_gets_a_part_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert claim(tmp_path).ordinal == 1
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert claim(tmp_path).ordinal == 9


def test_a_folder_of_a_live_process_is_not_taken(tmp_path):
    owned_by(tmp_path / "part00000", pid=os.getppid(), extra={"run_key": "other", "ended_ns": None})
    assert claim(tmp_path).ordinal == 1


def test_a_folder_of_the_same_run_is_not_taken_though_its_owner_ended(tmp_path):
    owned_by(tmp_path / "part00000", pid=dead_pid(), extra={"run_key": "k", "ended_ns": 5})
    assert claim(tmp_path).ordinal == 1


def test_a_folder_that_was_just_made_is_not_taken(tmp_path):
    (tmp_path / "part00000").mkdir()
    assert claim(tmp_path).ordinal == 1
    os.utime(tmp_path / "part00000", (1, 1))
    assert claim(tmp_path).ordinal == 0


def test_what_an_earlier_run_left_is_set_aside(tmp_path):
    owned_by(tmp_path / "part00000", pid=dead_pid(), extra={"run_key": "other", "ended_ns": 5})
    owned_by(tmp_path / "part00001", ordinal=1, pid=dead_pid(), extra={"run_key": "other", "ended_ns": None})
    owned_by(tmp_path / "part00002", ordinal=2, host="elsewhere", extra={"run_key": "k", "ended_ns": 5})
    folder = claim(tmp_path)
    assert folder.ordinal == 0
    folder.set_others_aside(identify())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["part00000", "part00002", "previous"]
    assert len(list((tmp_path / "previous").iterdir())) == 2


def test_two_sessions_of_one_process_are_two_windows(tmp_path):
    for _ in range(2):
        with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
            prof.step()
    found = [describe(tmp_path / f"part0000{n}") for n in range(2)]
    assert [(p.ordinal, p.window, p.rank) for p in found] == [(0, 0, 0), (1, 1, 0)]


def test_a_reserve_is_held_and_given_back(tmp_path):
    folder = claim(tmp_path)
    assert sum(p.stat().st_size for p in folder.path.iterdir()) == 65536
    folder.release_reserve()
    assert list(folder.path.iterdir()) == []

"""What is written last waits for room on a disk that was full a moment ago."""

import errno
from pathlib import Path

import pytest

import dtprof
from dtprof.session import folder
from dtprof.session.folder import describe

WRITE = Path.write_bytes


@pytest.fixture
def full(monkeypatch):
    """A disk that is full for the given number of writes of descriptions, and how often was waited."""
    state = {"left": 0, "waited": 0, "errno": errno.ENOSPC}

    def write(path, data):
        if state["left"] and path.name.endswith(".json.tmp"):
            state["left"] -= 1
            raise OSError(state["errno"], "planted")
        return WRITE(path, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(folder.time, "sleep", lambda _: state.update(waited=state["waited"] + 1))
    return state


def ended(tmp_path, full, **changes):
    with dtprof.profile(tmp_path, collectors=[], capture=None) as prof:
        for _ in range(3):
            prof.step()
        full.update(changes)
    return describe(tmp_path / "part00000").extra


@pytest.mark.parametrize("writes", [1, 2])
def test_the_last_description_waits_for_room(tmp_path, full, writes):
    extra = ended(tmp_path, full, left=writes)
    assert (extra["ended_ns"] is not None, extra["failures"], full["waited"]) == (True, [], writes)
    assert not list(tmp_path.rglob("*.tmp"))


def test_it_does_not_wait_for_ever_nor_for_what_is_no_lack_of_room(tmp_path, full):
    assert ended(tmp_path / "full", full, left=3)["ended_ns"] is None
    assert full["waited"] == 2
    assert ended(tmp_path / "io", full, left=1, errno=errno.EIO)["ended_ns"] is None
    assert full["waited"] == 2

"""CUDA allocator snapshots: the same answer from every protocol, levels against plain sums, nothing of a hostile file run."""

import copyreg
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dtprof
from dtprof.analyse import study_of
from dtprof.cli import main
from dtprof.errors import InputError, NotATrace
from dtprof.ingest.memory import reader
from dtprof.schema import MISSING

MIB = 1 << 20
BASE = 0x7F0000000000


def event(action, address, size, time_us, **more):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": [], **more}


def block(address, size, state="active_allocated", requested=None, **more):
    asked = (0 if state == "inactive" else size) if requested is None else requested
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": [], **more}


def segment(blocks, address=BASE, device=0, **more):
    total = sum(b["size"] for b in blocks)
    return {"device": device, "address": address, "total_size": total, "stream": 0, "blocks": blocks, **more}


def snapshot(segments, *traces):
    return {"segments": segments, "device_traces": list(traces), "allocator_settings": {"expandable_segments": True}}


def write(path, value, protocol=4):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def rows(run, table, **wanted):
    found = run.table(table, 0)
    every = [{k: v for k, v in found.row(i).items() if v is not None} for i in range(len(found))]
    return [row for row in every if all(row.get(k) == v for k, v in wanted.items())]


def said(run):
    return {(row["metric"], row.get("device")): row["value"] for row in rows(run, "samples")}


# -- the public case


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_protocol_gives_the_same_answer(truth, protocol):
    run = dtprof.open_run(truth / "cases" / f"snap_p{protocol}.pickle")
    assert run.format == "snapshot"
    assert said(run) == {
        ("memory_inactive", 0): 12 * MIB,
        ("memory_inactive_held", 0): 12 * MIB,
        ("memory_pending_free", 0): 2 * MIB,
        ("memory_largest_free", 0): 12 * MIB,
        ("memory_rounding", 0): 0,
        ("memory_segments", 0): 1,
        ("memory_oom", 0): 64 * MIB,
    }
    levels = [(row["ts"], row["bytes"]) for row in rows(run, "memory", category="allocated")]
    assert levels == [(10_000, 0), (20_000, 6 * MIB), (30_000, 8 * MIB), (60_000, 8 * MIB)]
    lost = [row for row in rows(run, "quality") if "lost its beginning" in row["what"]]
    assert [row["count"] for row in lost] == [1]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_no_peak_is_claimed_before_the_window(truth, protocol):
    (part,) = study_of(dtprof.open_run(truth / "cases" / f"snap_p{protocol}.pickle")).result("memory").parts
    assert (part.peak.bytes, part.peak.ts, part.peak.exact, part.peak.held_before) == (8 * MIB, 30_000, False, 12 * MIB)
    told = part.fragmentation
    assert (told.reserved, told.allocated, told.free, told.held, told.pending) == tuple(n * MIB for n in (20, 8, 12, 12, 2))
    assert told.share == 0.6
    assert part.failed == (64 * MIB,)
    assert part.creep is None
    assert part.why["creep"]


def test_a_pickle_that_wants_to_run_something_is_refused(truth, capfd):
    path = truth / "cases" / "snap_evil.pickle"
    with pytest.raises(InputError, match=r"builtins\.print"):
        dtprof.open_run(path)
    assert main(["report", str(path)]) == 3
    out, err = capfd.readouterr()
    assert "code ran" not in out + err
    assert err.count("\n") == 1
    assert str(path) in err


def test_the_verb_reports_a_snapshot(truth, capsys, tmp_path):
    path = truth / "cases" / "snap_p5.pickle"
    page = tmp_path / "page.html"
    assert main(["report", str(path), "--json", "--html", str(page)]) == 0
    (part,) = json.loads(capsys.readouterr().out)["memory"]
    assert part["peak"]["bytes"] == 8 * MIB
    assert part["categories"]["activation"] is None
    assert "activation" in part["why"]
    assert "<h2>Memory</h2>" in page.read_text()
    assert main(["report", str(path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "6.00 MiB of the 20.0 MiB that the allocator holds are live, 2.00 MiB wait to be freed" in text
    assert "at least 12.0 MiB were held" in text


# -- hostile and damaged files


class Calls:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def hand_written(body):
    """A pickle of protocol 2 with this body, stopped."""
    return b"\x80\x02" + body + b"."


HOSTILE = {
    "global": lambda marker: pickle.dumps({"segments": [Calls(marker)], "device_traces": []}, 2),
    "stack global": lambda marker: pickle.dumps({"segments": [Calls(marker)], "device_traces": []}, 4),
    "inst": lambda marker: hand_written(b"(X" + struct.pack("<I", len(marker)) + marker.encode() + b"ios\nmkdir\n"),
    "persistent id": lambda marker: hand_written(b"Pmarker\n"),
    "a class of this package": lambda marker: hand_written(b"cdtprof.run\nRun\n)\x81"),
    "numpy": lambda marker: pickle.dumps({"segments": [np.int64(3)], "device_traces": []}, 4),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_but_plain_containers_is_loaded(tmp_path, kind):
    path, marker = tmp_path / "s.pickle", tmp_path / "ran"
    path.write_bytes(HOSTILE[kind](str(marker)))
    with pytest.raises(InputError, match=r"nothing of it was run|outside the file"):
        dtprof.open_run(path)
    assert not marker.exists()


def test_a_registered_extension_is_refused_too(tmp_path):
    code = 200
    copyreg.add_extension("os", "getcwd", code)
    try:
        path = tmp_path / "s.pickle"
        path.write_bytes(hand_written(b"\x82" + bytes([code]) + b")R"))
        with pytest.raises(InputError):
            dtprof.open_run(path)
    finally:
        copyreg.remove_extension("os", "getcwd", code)


BOMBS = {
    # a memo slot far away makes the unpickler reserve all slots before it
    "memo": hand_written(b"]r" + struct.pack("<I", 2**32 - 2)),
    # a text of 2**50 bytes
    "length": b"\x80\x04\x8d" + struct.pack("<Q", 2**50) + b".",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_memory_is_bounded(tmp_path, kind):
    path = tmp_path / "s.pickle"
    path.write_bytes(BOMBS[kind])
    with pytest.raises(InputError) as told:
        dtprof.open_run(path)
    assert told.value.exit_code == 3


@pytest.mark.parametrize("fill", [[block(BASE, 512)] * 2000, [7] * 2000], ids=["blocks", "junk"])
def test_a_file_that_repeats_itself_endlessly_is_refused(tmp_path, fill):
    blocks = list(fill)
    one = segment([block(BASE, 512)], total_size=512) | {"blocks": blocks}
    path = write(tmp_path / "s.pickle", snapshot([dict(one) for _ in range(2000)]))
    assert path.stat().st_size < 2000 * 2000
    with pytest.raises(InputError, match="more entries than it has bytes"):
        dtprof.open_run(path)


@pytest.mark.parametrize("value", [[], {}, {"segments": 3}, "text", {"state": {}}], ids=repr)
def test_another_pickle_is_no_snapshot(tmp_path, value):
    with pytest.raises(InputError, match="no snapshot of the CUDA allocator"):
        dtprof.open_run(write(tmp_path / "s.pickle", value))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_file_that_is_cut_off_says_so(tmp_path, protocol):
    whole = pickle.dumps(snapshot([segment([block(BASE, MIB)])], [event("alloc", BASE, MIB, 5)]), protocol)
    path = tmp_path / "s.pickle"
    for end in range(2, len(whole), len(whole) // 6):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"s\.pickle: .*(damaged|no snapshot)"):
            dtprof.open_run(path)


def test_a_text_file_is_none(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(b"(dp0\n.")
    with pytest.raises(NotATrace):
        dtprof.open_run(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not reader.SnapshotReader().sniff(tmp_path / "pipe")


def test_the_reader_stays_within_the_memory_it_is_given(tmp_path):
    events = [event("alloc", BASE + 512 * i, 512, i) for i in range(60_000)]
    path = write(tmp_path / "s.pickle", snapshot([segment([block(BASE, 512)])], events))
    assert len(reader.load(path)["events.size"]) == 60_000
    with pytest.raises(InputError, match=r"more memory than reading it may take.*max_entries"):
        reader.load(path, limit=32 << 20)


# -- odd but honest files


def test_what_is_no_entry_is_counted_and_left_out(tmp_path):
    odd = [
        3,
        event("alloc", BASE, 512, 1),
        {"action": "unheard of", "size": 1},
        event("snapshot", 0, 0, 2),
        {"action": "alloc"},
    ]
    held = segment([block(BASE, 512), block(BASE + 512, 512, "melted")])
    segments = [held | {"blocks": [*held["blocks"], None]}, "no segment"]
    run = dtprof.open_run(write(tmp_path / "s.pickle", snapshot(segments, odd)))
    assert [row["size"] for row in rows(run, "allocations")] == [512]
    assert [row["count"] for row in rows(run, "quality") if "no block" in row["what"]] == [6]


def test_blocks_without_addresses_follow_one_another(tmp_path):
    """Files of torch 2.0: no address, no requested size, the older name of the pending state, no times."""
    blocks = [{"size": MIB, "state": "active_allocated"}, {"size": 2 * MIB, "state": "active_awaiting_free"}]
    trace = [{"action": "alloc", "addr": BASE + MIB, "size": 2 * MIB, "stream": 0}]
    old = {"segments": [segment(blocks)], "device_traces": [trace]}
    run = dtprof.open_run(write(tmp_path / "s.pickle", old))
    assert said(run)[("memory_pending_free", 0)] == 2 * MIB
    assert run.table("allocations", 0)["ts"].tolist() == [MISSING]
    assert [row["count"] for row in rows(run, "quality") if "beginning" in row["what"]] == [1]
    (part,) = study_of(run).result("memory").parts
    assert (part.peak.bytes, part.peak.ts) == (3 * MIB, None)


def test_without_history_only_the_state_is_told(tmp_path):
    run = dtprof.open_run(write(tmp_path / "s.pickle", snapshot([segment([block(BASE, MIB)])])))
    assert any(row["what"] == "no history was recorded" for row in rows(run, "quality"))
    assert len(run.table("allocations", 0)) == 0
    (part,) = study_of(run).result("memory").parts
    assert part.fragmentation.reserved == MIB


def test_a_history_that_contradicts_its_end_gives_no_levels(tmp_path):
    wrong = [event("free_completed", BASE, MIB, 1), event("alloc", BASE, 9 * MIB, 2), event("free_requested", BASE, MIB, 3)]
    run = dtprof.open_run(write(tmp_path / "s.pickle", snapshot([segment([block(BASE, MIB)])], wrong)))
    assert any("does not fit the state" in row["what"] for row in rows(run, "quality"))
    assert [row["bytes"] for row in rows(run, "memory", category="allocated")] == [MIB]


def test_live_bytes_belong_to_stacks_and_ranks_come_from_names(tmp_path):
    here = [{"name": "forward", "filename": "model.py", "line": 3}, {"name": "main", "filename": "train.py", "line": 9}]
    blocks = [block(BASE, MIB, frames=here), block(BASE + MIB, 2 * MIB, frames=here), block(BASE + 3 * MIB, MIB)]
    trace = [event("alloc", b["address"], b["size"], i, frames=b["frames"]) for i, b in enumerate(blocks)]
    run = dtprof.open_run(write(tmp_path / "snapshot_rank3.pickle", snapshot([segment(blocks)], trace)))
    assert run.ranks == [3]
    held = [row for row in rows(run, "memory") if "stack" in row]
    assert [(row["bytes"], row["stack"]) for row in held] == [(3 * MIB, "forward (model.py:3)\nmain (train.py:9)")]
    (part,) = study_of(run).result("memory").parts
    assert [(o.name, o.bytes) for o in part.peak.owners] == [("forward (model.py:3)", 3 * MIB), (None, MIB)]
    assert part.peak.exact


def test_two_devices_are_kept_apart(tmp_path):
    segments = [segment([block(BASE, MIB)]), segment([block(BASE, 4 * MIB), block(BASE + 4 * MIB, MIB, "inactive")], device=1)]
    traces = [[event("alloc", BASE, MIB, 1)], [event("alloc", BASE, 4 * MIB, 2)]]
    run = dtprof.open_run(write(tmp_path / "s.pickle", snapshot(segments, *traces)))
    assert (said(run)[("memory_inactive", 0)], said(run)[("memory_inactive", 1)]) == (0, MIB)
    (part,) = study_of(run).result("memory").parts
    assert (part.peak.bytes, part.fragmentation.free) == (4 * MIB, MIB)


# -- against a plain replay


@st.composite
def histories(draw):
    """Allocations and frees in 512-byte slots, and what is live at the end."""
    live, pending, trace, level, levels = {}, {}, [], 0, []
    for i in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from(["alloc", "request", "complete"]))
        slot = draw(st.integers(0, 5))
        address = BASE + slot * 4096
        if kind == "alloc" and address not in live:
            live[address] = draw(st.integers(1, 4096))
            trace.append(event("alloc", address, live[address], i))
            level += live[address]
        elif kind == "request" and address in live and address not in pending:
            pending[address] = live[address]
            trace.append(event("free_requested", address, live[address], i))
            continue
        elif kind == "complete" and address in pending:
            trace.append(event("free_completed", address, live.pop(address), i))
            level -= pending.pop(address)
        else:
            continue
        levels.append(level)
    blocks = [
        block(a, 4096, "active_pending_free" if a in pending else "active_allocated", requested=size)
        for a, size in sorted(live.items())
    ]
    return blocks, trace, levels


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("histories")


@settings(max_examples=25)
@given(history=histories(), lost=st.integers(0, 10))
def test_levels_are_right_however_much_of_the_beginning_is_lost(folder: Path, history, lost):
    blocks, trace, levels = history
    kept = trace[lost:]
    of_level = [e for e in trace if e["action"] != "free_requested"]
    left = sum(e["action"] != "free_requested" for e in kept)
    run = dtprof.open_run(write(folder / "s.pickle", snapshot([segment(blocks)] if blocks else [], kept)))
    found = [row["bytes"] for row in rows(run, "memory", category="allocated") if "stack" not in row]
    if kept or blocks:
        assert found[:-1] == levels[len(of_level) - left :]
        assert found[-1] == sum(b["requested_size"] for b in blocks)
    known = {e["addr"] for e in kept if e["action"] == "alloc"}
    claimed = any("lost its beginning" in row["what"] for row in rows(run, "quality"))
    if kept:
        assert claimed or {b["address"] for b in blocks} <= known

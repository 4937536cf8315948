"""Files, ranks, windows and damage: what several files of one folder become."""

from __future__ import annotations

import json
import os

import pytest

import dtprof
from dtprof.errors import InputError
from tests.unit.kineto_maker import Trace, quality, study, verdict


def small(rank=None, world=None, step=0, at=0, **header):
    t = Trace(rank, world, **header)
    for i in range(3):
        start = at + 1000 * i
        t.step(step + i, start, start + 1000)
        t.run("gemm", start + 10, start + 20, start + 500)
    return t


def test_several_windows_of_one_process_are_kept_apart(tmp_path):
    for pid in (77, 78):
        for stamp, step, at in ((1000000000000000001, 2, 0), (1000000000000000002, 7, 10_000)):
            small(step=step, at=at).write(tmp_path / f"n1.a.b_{pid}.{stamp}.pt.trace.json")
    run = dtprof.open_run(tmp_path)
    assert len(run.parts) == 4
    assert sorted((p.pid, p.window) for p in run.parts) == [(77, 0), (77, 1), (78, 0), (78, 1)]
    assert {p.host for p in run.parts} == {"n1.a.b"}
    steps = {(p.pid, p.window): run.table("steps", p.ordinal)["step"].tolist() for p in run.parts}
    assert steps[(77, 0)] == [2, 3, 4] and steps[(78, 1)] == [7, 8, 9]
    assert study(tmp_path).result("stragglers").found == ()
    assert any("capture window" in what for what, _ in quality(run))


def test_two_files_that_claim_one_rank_are_both_kept_and_reported(tmp_path):
    small(0, 2).write(tmp_path / "a.json")
    small(0, 2).write(tmp_path / "b.json")
    run = dtprof.open_run(tmp_path)
    assert len(run.parts) == 2
    assert any("rank 0 has 2 files" in what or "claimed by 2 files" in what for what, _ in quality(run))
    accounts = study(tmp_path).result("accounting").parts
    assert [a.device.comm_kernels for a in accounts] == [0, 0]


def test_names_tell_files_apart_that_all_claim_rank_zero(tmp_path):
    for rank in range(3):
        small(0, 3).write(tmp_path / f"rank{rank}.json")
    run = dtprof.open_run(tmp_path)
    assert run.ranks == [0, 1, 2]
    assert any("its name says 2" in what for what, _ in quality(run))


def test_files_without_any_rank_are_kept_and_not_compared(tmp_path):
    small().write(tmp_path / "x.json")
    small().write(tmp_path / "y.json")
    run = dtprof.open_run(tmp_path)
    assert [p.rank for p in run.parts] == [None, None]
    assert sum("no rank" in what for what, _ in quality(run)) == 2
    assert "2\u00a0processes without a rank" in verdict(study(tmp_path)).header


def test_other_json_in_the_folder_is_passed_over(tmp_path):
    small(0, 1).write(tmp_path / "rank0.json")
    (tmp_path / "config.json").write_text(json.dumps({"lr": 0.1, "traceEvents": "none"}))
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "metrics.json").write_text("[1, 2, 3]")
    assert len(dtprof.open_run(tmp_path).parts) == 1


def test_on_demand_traces_take_their_ranks_from_communication_arguments(tmp_path):
    for rank, pid in ((0, 900), (1, 901)):
        t = Trace()
        for i in range(3):
            t.run("gemm", 1000 * i, 1000 * i + 5, 1000 * i + 500)
            t.run("ncclDevKernel_AllReduce", 1000 * i + 501, 1000 * i + 510, 1000 * i + 600, stream=20,
                  **{"Collective name": "allreduce", "Rank": rank, "Group size": 2, "In msg nelems": 8, "Out msg nelems": 8,
                     "dtype": "Float", "Process Group Ranks": "[0, 1]", "Process Group Name": "0", "Seq": i})  # fmt: skip
        t.write(tmp_path / f"libkineto_activities_{pid}.json")
    run = dtprof.open_run(tmp_path)
    assert run.ranks == [0, 1] and [p.pid for p in run.parts] == [900, 901]
    s = study(tmp_path)
    assert all(p.steps == () for p in s.result("accounting").parts)
    assert "no steps are marked" in verdict(s).why
    assert [o.matched_by for o in s.result("comm").operations] == ["seq"] * 3
    assert s.result("accounting").parts[0].device.compute_ns == 3 * 495_000


def test_an_impossible_kernel_is_quarantined_by_name(tmp_path):
    def trace(event_500_us):
        t = Trace(0, 1)
        for i in range(1000):
            t.kernel("gemm", 60_000 * i, 60_000 * i + (event_500_us if i == 500 else 3_000))
        return t

    bad = trace(2_000_000).write(tmp_path / "bad.json")
    run = dtprof.open_run(bad)
    told = [what for what, _ in quality(run) if "impossible" in what]
    assert len(told) == 1 and "2000000000 ns" in told[0] and str(60_000 * 500 * 1000) in told[0]
    device = study(bad).result("accounting").parts[0].device
    assert device.compute_ns == 999 * 3_000_000
    assert device.span_ns == (999 * 60_000 + 3_000) * 1000


def test_dense_kernels_with_colliding_microseconds_are_not_suspect(tmp_path):
    t = Trace(0, 1)
    for i in range(1000):
        t.kernel("gemm", 2 * i - (i % 3), 2 * i + 2)
    run = dtprof.open_run(t.write(tmp_path / "rank0.json"))
    assert not [what for what, _ in quality(run) if "impossible" in what]
    assert len(run.table("events", 0)) == 1000


def test_two_writers_of_one_file_are_named(tmp_path):
    other = small(1, 2, step=50, at=123_456)
    other.op("aten::a_long_name_that_moves_everything", 123_460, 123_470)
    for event in other.events:
        event["pid"] = 11 if event["pid"] == 10 else 1
    one = small(0, 2)
    for trace, pid in ((one, 10), (other, 11)):  # torch writes the names of the processes last
        trace.events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "python"}})
    first, second = (json.dumps({**t.header, "traceEvents": t.events}) for t in (one, other))
    mixed = tmp_path / "rank0.json"
    mixed.write_text(first[: int(len(first) * 0.6)] + second[int(len(second) * 0.6) :])
    run = dtprof.open_run(mixed)
    whole = json.loads(first)["traceEvents"]
    cut = first[: int(len(first) * 0.6)]
    expected = [e for e in whole if json.dumps(e) in cut]
    names = run.table("events", 0)
    assert len(expected) > 2
    assert {e["ts"] for e in expected} <= {(ts - 1_700_000_000_000_000_000) // 1000 for ts in names["ts"].tolist()}
    assert any("two writers" in what for what, _ in quality(run)), quality(run)


@pytest.mark.parametrize("content", [b"", b"%PDF-1.7 \x00\x01", b"\x1f\x8b\x08\x00trunc", b'{"a": 1}', b"<html></html>"])
def test_bad_files_name_the_file_and_a_remedy(tmp_path, content):
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        dtprof.open_run(path)
    assert "thing.json" in str(caught.value) and caught.value.hint and "\n" not in str(caught.value)


def test_missing_and_empty_folders_say_so(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        dtprof.open_run(tmp_path / "none")
    with pytest.raises(InputError, match="empty folder"):
        dtprof.open_run(tmp_path)


def test_a_foreign_folder_is_never_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr("dtprof.ingest.cache.LEAST_BYTES", 0)
    folder = tmp_path / "traces"
    folder.mkdir()
    small(0, 1).write(folder / "rank0.json")
    before = sorted(p.name for p in folder.iterdir())
    cold, warm = dtprof.open_run(folder), dtprof.open_run(folder)
    assert sorted(p.name for p in folder.iterdir()) == before
    for name in ("events", "lanes", "steps", "quality"):
        a, b = cold.table(name, 0), warm.table(name, 0)
        assert [a.row(i) for i in range(len(a))] == [b.row(i) for i in range(len(b))]
    small(0, 1, step=90).write(folder / "rank0.json")
    assert dtprof.open_run(folder).table("steps", 0)["step"].tolist() == [90, 91, 92]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    monkeypatch.setattr("dtprof.ingest.cache.LEAST_BYTES", 0)
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DTPROF_CACHE", str(blocked))
    path = small(0, 1).write(tmp_path / "rank0.json")
    assert dtprof.open_run(path).table("steps", 0)["step"].tolist() == [0, 1, 2]


def test_files_that_are_no_traces_are_named(tmp_path):
    small(0, 2).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text("")
    (tmp_path / "rank2.json").symlink_to(tmp_path / "gone.json")
    for i in range(9):
        (tmp_path / f"z{i}.json").write_text('{"a": 1}')
    run = dtprof.open_run(tmp_path)
    told = dict(quality(run))
    assert told["the file is empty"] == 1
    assert any("rank2.json: cannot be read" in what for what in told)
    assert told["other files that are no traces"] == 6


def test_a_trace_that_was_cut_off_is_the_first_thing_to_mend(tmp_path):
    whole = small(0, 1).write(tmp_path / "rank0.json").read_text()
    assert not any("cut off" in sentence for sentence in verdict(study(tmp_path)).next)
    (tmp_path / "rank0.json").write_text(whole[: len(whole) // 2])
    assert "the trace of rank 0 is cut off" in verdict(study(tmp_path)).next[0]


def test_a_folder_that_may_not_be_read_does_not_hide_the_others(tmp_path, monkeypatch):
    small(0, 2).write(tmp_path / "rank0.json")
    closed = tmp_path / "sub"
    closed.mkdir()
    small(1, 2).write(closed / "rank1.json")
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(closed) and may(path, mode))
    run = dtprof.open_run(tmp_path)
    assert run.ranks == [0]
    assert any("sub: cannot be read" in what for what, _ in quality(run))
    with pytest.raises(InputError, match="may not be read"):
        dtprof.open_run(closed)


@pytest.mark.parametrize(
    ("folder", "rank"),
    [("rank3", 3), ("worker_2", 2), ("node1-rank5", 5), ("lora_rank16", None), ("rank_ablation_7", None), ("x_rank_0", None)],
)
def test_a_folder_names_a_rank_only_where_it_is_called_so(tmp_path, folder, rank):
    (tmp_path / folder).mkdir()
    path = small().write(tmp_path / folder / "trace.json")
    assert dtprof.open_run(path).parts[0].rank == rank

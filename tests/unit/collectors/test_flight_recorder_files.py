"""Flight-recorder dumps as files: real ones of gloo, and what NCCL leaves behind, written by torch's documented keys."""

import io
import json
import pickle
import subprocess
import sys

import pytest

import dtprof
from dtprof.errors import InputError
from dtprof_collectors.flight_recorder import operations
from dtprof_collectors.flight_recorder_collector import FlightRecorderCollector
from dtprof_collectors.flight_recorder_files import is_dump, rank_in, read_dump
from dtprof_collectors.flight_recorder_reader import FlightRecorderReader

RANKS = 4
MS = 10**6


def entry(record, seq, *, name="nccl:all_reduce", state="completed", ms=None, ts=None, group=("0", "default_pg"), **more):
    ts = 10**18 + record * 10 * MS if ts is None else ts
    return {
        "record_id": record, "pg_id": 0, "process_group": group, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
        "profiling_name": name, "time_created_ns": ts, "input_sizes": [[1024, 256]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 256]], "output_dtypes": ["BFloat16"], "state": state, "retired": state == "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "timeout_ms": 600000, "is_p2p": False,
        "frames": [{"name": "forward", "filename": "train.py", "line": 7}], **({"duration_ms": ms} if ms else {}), **more,
    }  # fmt: skip


def dump(entries, ranks=RANKS):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": "2.5", "nccl_version": "2.21.5", "pg_config": config, "pg_status": {}, "entries": entries}


def write(folder, found, rank, protocol=2):
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(found, protocol))


def quality(run, part=0):
    table = run.table("quality", part)
    return {table.row(i)["what"]: table.row(i)["count"] for i in range(len(table))}


@pytest.fixture
def hang(tmp_path):
    """Four ranks; all have ended all-reduce 1, and rank 2 never enters all-reduce 2."""
    for rank in range(RANKS):
        entries = [entry(0, 1, ms=2.0 + rank)]
        if rank != 2:
            entries.append(entry(1, 2, state="started", ts=10**18 + 20 * MS + rank))
        write(tmp_path, dump(entries), rank, protocol=2 + rank)
    return tmp_path


def test_which_ranks_entered_which_operation(hang):
    run = dtprof.open_run(hang)
    assert (run.format, run.ranks, run.manifest.versions["nccl"]) == ("flight_recorder", [0, 1, 2, 3], "2.21.5")
    assert run.world_size == 4
    done, stuck = (run.table("collectives").row(i) for i in range(2))
    assert (done["op"], done["seq"], done["group"], done["n"], done["n_present"]) == ("all_reduce", 1, "0,1,2,3", 4, 4)
    assert (stuck["seq"], stuck["n"], stuck["n_present"], stuck["transfer"]) == (2, 4, 3, None)
    took_part = run.table("participations")
    assert sorted(took_part["rank"][took_part["collective"] == 1].tolist()) == [0, 1, 3]
    assert [run.table("comm", p).text("state")[-1] for p in range(RANKS)] == ["started", "started", "completed", "started"]


def test_sizes_durations_and_bandwidth(hang):
    run = dtprof.open_run(hang)
    row = run.table("collectives").row(0)
    size = 1024 * 256 * 2
    assert (row["bytes"], row["transfer"], row["last_start"]) == (size, 2 * MS, 10**18)
    assert row["busbw"] == pytest.approx(size / (2 * MS) * 2 * 3 / 4)
    assert run.table("participations")["wait"][:4].tolist() == [0, MS, 2 * MS, 3 * MS]
    comm = run.table("comm", 0).row(0)
    assert (comm["bytes_in"], comm["dtype"], comm["known_by"]) == (size, "bfloat16", "collector")


def test_what_had_not_ended_is_named(hang):
    run = dtprof.open_run(hang)
    what = "operations of group default_pg that were issued and had not ended; the first is all_reduce 2 (started)"
    assert quality(run, 0)[what] == 1
    assert what not in quality(run, 2)


def test_json_and_pickle_say_the_same(hang, tmp_path):
    folder = tmp_path / "json"
    folder.mkdir()
    for file in hang.glob("nccl_trace_rank_*"):
        found = pickle.loads(file.read_bytes())
        (folder / f"{file.name}.json").write_text(json.dumps(found))
    one, other = dtprof.open_run(hang), dtprof.open_run(folder)
    for name in ("collectives", "participations"):
        assert [one.table(name).row(i) for i in range(2)] == [other.table(name).row(i) for i in range(2)]


def test_coalesced_operations_of_one_number_stay_apart(tmp_path):
    for rank in range(2):
        coalesced = [entry(i, 5, name="nccl:all_gather_into_tensor_coalesced", ms=1.0) for i in range(3)]
        write(tmp_path, dump(coalesced, 2), rank)
    rows = dtprof.open_run(tmp_path).table("collectives")
    assert (len(rows), set(rows["n_present"].tolist()), set(rows.text("op"))) == (3, {2}, {"all_gather"})


def test_sends_and_receives_keep_their_peer_and_stand_alone(tmp_path):
    send = entry(0, 0, name="nccl:send 0->1", is_p2p=True, p2p_seq_id=3)
    write(tmp_path, dump([send], 2), 0)
    run = dtprof.open_run(tmp_path)
    assert (run.table("comm", 0).row(0)["peer"], run.table("comm", 0).row(0)["seq"]) == (1, 3)
    assert run.table("collectives").row(0)["one_sided"]


def test_what_a_functional_all_gather_of_gloo_gets_is_of_all_ranks(tmp_path):
    part = {"input_sizes": [[2, 3]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "name": "gloo:all_gather"}
    found = dump([entry(n, n + 1, output_sizes=[[ranks, 2, 3]], **part) for n, ranks in enumerate((1, RANKS))])
    assert [(row["bytes_in"], row["bytes_out"]) for row in operations(found)] == [(24, 96), (24, 96)]


def test_a_ring_that_has_turned_is_named(tmp_path):
    write(tmp_path, dump([entry(7, 8), entry(8, 9)]), 0)
    assert quality(dtprof.open_run(tmp_path))["older operations that the recorder's ring had dropped"] == 7


def test_a_damaged_entry_costs_itself(tmp_path):
    bad = [{}, {"time_created_ns": 2**70}, {"process_group": 5, "time_created_ns": 1}, 7, entry(1, 2, input_sizes="x")]
    write(tmp_path, dump([entry(0, 1), *bad, entry(2, 3, input_sizes=[[2**40, 2**40]])]), 0)
    run = dtprof.open_run(tmp_path)
    assert run.table("comm", 0)["seq"].tolist() == [1, 3]
    assert run.table("comm", 0).row(1)["bytes_in"] is None
    assert quality(run)["entries that are damaged or have no instant of issue"] == 5


class Evil:
    def __reduce__(self):
        return print, ("run by a pickle",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_no_code_of_a_pickle_is_run(tmp_path, capsys, protocol):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({**dump([]), "x": Evil()}, protocol))
    with pytest.raises(InputError, match=r"nccl_trace_rank_0: refused: it asks for (__builtin__|builtins)\.print"):
        dtprof.open_run(path)
    assert capsys.readouterr().out == ""


def test_a_persistent_object_is_refused(tmp_path):
    class Writer(pickle.Pickler):
        def persistent_id(self, value):
            return "somewhere" if value == "me" else None

    stream = io.BytesIO()
    Writer(stream, 2).dump({**dump([]), "x": "me"})
    (tmp_path / "a_rank_0").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match="persistent"):
        read_dump(tmp_path / "a_rank_0")


def test_a_memo_index_of_four_billion_takes_no_memory(tmp_path):
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x02}(X\x09\x00\x00\x00pg_configr\xff\xff\xff\xff}X\x07\x00\x00\x00entries]u.")
    assert is_dump(path)
    assert read_dump(path)["entries"] == []


@pytest.mark.parametrize("keep", [3, 40, 200, -1])
def test_a_dump_that_was_cut_off_is_named_and_the_others_open(hang, keep):
    path = hang / "nccl_trace_rank_1"
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    run = dtprof.open_run(hang)
    assert run.ranks == [0, 2, 3]
    with pytest.raises(InputError, match="nccl_trace_rank_1"):
        FlightRecorderReader().read(path, {}) if is_dump(path) else read_dump(path)


def test_a_rank_that_is_there_twice_is_another_attempt(tmp_path):
    for name in ("a_rank_0", "b_rank_0"):
        (tmp_path / name).write_bytes(pickle.dumps(dump([entry(0, 1)]), 2))
    run = dtprof.open_run(tmp_path)
    assert [(p.rank, p.attempt) for p in run.parts] == [(0, 0), (0, 1)]
    assert run.table("collectives")["n_present"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "rank"), [("nccl_trace_rank_12", 12), ("comm_lib_trace_rank_3", 3), ("dump-7.json", 7), ("x.json", None)]
)
def test_the_rank_is_in_the_name(name, rank):
    assert rank_in(name) == rank


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x80\x02.", b'{"traceEvents": [], "entries": "pg_config"}', b'{"entries": []}', b"pg_config entries"]
)
def test_what_is_no_dump(tmp_path, data):
    (tmp_path / "rank_0").write_bytes(data)
    assert not is_dump(tmp_path / "rank_0")
    assert not FlightRecorderReader().sniff(tmp_path)


JOB = """
import os, sys
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCH_FR_BUFFER_SIZE="3")
import torch, torch.distributed as dist
import dtprof
dist.init_process_group("gloo")
with dtprof.profile(sys.argv[1], capture=None, collectors=["flight_recorder"]) as prof:
    for _ in range(4):
        dist.all_reduce(torch.ones(8))
        prof.step()
open(sys.argv[1] + "/rank_0.pickle", "wb").write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
dist.destroy_process_group()
"""


def test_a_real_dump_of_gloo_in_the_job_and_as_a_file(tmp_path):
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", JOB, str(tmp_path / "run")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    inside, outside = tmp_path / "run" / "part00000" / "flight_recorder.json", tmp_path / "run" / "rank_0.pickle"
    for path in (inside, outside):
        run = dtprof.open_run(path)
        comm = run.table("comm", 0)
        assert (run.ranks, comm["seq"].tolist(), set(comm.text("state"))) == ([0], [2, 3, 4], {"completed"})
        assert set(comm["bytes_in"].tolist()) == {32}
        assert quality(run)["older operations that the recorder's ring had dropped"] == 1
    assert dtprof.open_run(inside).table("groups", 0).row(0)["ranks"] == (0,)
    assert not any("had not ended" in what for what in quality(dtprof.open_run(tmp_path / "run")))


def test_what_had_not_ended_in_a_job_is_named_in_its_run(tmp_path):
    (tmp_path / "flight_recorder.json").write_text(json.dumps(dump([entry(0, 1), entry(1, 2, state="scheduled")])))
    (row,) = [FlightRecorderCollector().tables(tmp_path)["quality"].row(0)]
    assert (row["count"], "all_reduce 2 (scheduled)" in row["what"]) == (1, True)

"""What moved between two runs: hand-made traces with a known change, of one and of several ranks."""

import json

import pytest

from dtprof import cli
from dtprof.analyse import study_of
from dtprof.analyse.diff import diff
from dtprof.ingest import open_run

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def write(folder, rank, *, ranks=2, steps=4, compute=30, late=0, comm=10, gap=0, kernel="ampere_sgemm_64x32", moe=0):
    """Steps of gap, compute, waiting for the late rank, communication; all in us. Every step ends at once on all ranks."""
    events = []

    def event(cat, name, ts, dur, tid, **args):
        pid = 9 if cat != "kernel" else 0
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    def launch(name, at, ts, dur, stream, number, **args):
        event("cuda_runtime", "cudaLaunchKernel", at, 1, 1, correlation=number)
        event("kernel", name, ts, dur, stream, correlation=number, device=0, stream=stream, context=1, **args)

    length = gap + compute + late + comm + moe
    for step in range(steps):
        t, number = 1000 + length * step, 10 * step
        event("user_annotation", f"ProfilerStep#{step}", t, length, 1)
        launch(kernel, t, t + gap, compute, 7, number + 1)
        if moe:
            launch("void at::native::elementwise_kernel<4>", t + 1, t + gap + compute, moe, 7, number + 2)
        group = {
            "Collective name": "allreduce",
            "In msg nelems": 1000,
            "Out msg nelems": 1000,
            "dtype": "Float",
            "Group size": ranks,
            "Process Group Name": "0",
            "Process Group Ranks": str(list(range(ranks))),
        }
        launch(ALL_REDUCE, t + 2, t + gap + compute + moe, late + comm, 20, number + 3, **group)
    identity = {"rank": rank, "world_size": ranks, "backend": "nccl"}
    (folder / f"rank{rank}.json").write_text(
        json.dumps({"schemaVersion": 1, "distributedInfo": identity, "traceEvents": events})
    )


def run(tmp_path, name, *ranks, **common):
    folder = tmp_path / name
    folder.mkdir()
    for rank, change in enumerate(ranks):
        write(folder, rank, ranks=len(ranks), **{**common, **change})
    return folder


def compared(a, b):
    found = diff(study_of(open_run(a)), study_of(open_run(b)))
    if found.keys:
        assert sum(y - x for x, y in found.keys.values()) == found.b_step_ns - found.a_step_ns
        assert sum(x for x, _ in found.keys.values()) == found.a_step_ns
    for keys in found.ranks.values():
        assert set(keys) == set(found.keys)
    return found


def test_more_communication(tmp_path):
    a = run(tmp_path, "a", {}, {}, comm=10)
    b = run(tmp_path, "b", {}, {}, comm=25)
    found = compared(a, b)
    assert (found.cause.key, found.cause.ranks, found.cause.delta_ns) == ("comm_transfer_ns", (), 15_000)
    assert "exposed communication" in found.headline and "all_reduce" in found.headline
    assert found.b_step_ns - found.a_step_ns == 15_000


def test_a_slow_rank_is_named_and_not_the_waiting_it_causes(tmp_path):
    a = run(tmp_path, "a", {}, {}, {})
    b = run(tmp_path, "b", {"late": 20}, {"compute": 50}, {"late": 20})
    found = compared(a, b)
    assert (found.cause.key, found.cause.ranks) == ("compute_ns", (1,))
    assert found.cause.delta_ns == 20_000
    assert "compute on rank 1" in found.headline
    back = compared(b, a)
    assert (back.cause.key, back.cause.ranks, back.cause.delta_ns) == ("compute_ns", (1,), -20_000)


def test_compute_of_all_ranks_names_no_rank_but_class_and_operation(tmp_path):
    a = run(tmp_path, "a", {}, {})
    b = run(tmp_path, "b", {}, {}, moe=12)
    found = compared(a, b)
    assert (found.cause.key, found.cause.ranks) == ("compute_ns", ())
    assert "kernel class elementwise" in found.cause.where and "elementwise_kernel" in found.cause.where
    assert {m.delta_ns for m in found.moved if m.name == "elementwise"} == {12_000}


def test_a_host_that_launches_late_on_one_rank(tmp_path):
    a = run(tmp_path, "a", {}, {})
    b = run(tmp_path, "b", {"late": 15}, {"gap": 15})
    found = compared(a, b)
    assert found.cause.ranks == (1,) and found.cause.key.startswith("idle")


def test_different_numbers_of_ranks_and_steps(tmp_path):
    a = run(tmp_path, "a", {}, {}, steps=3)
    b = run(tmp_path, "b", {}, {}, {}, {}, steps=6, comm=20)
    found = compared(a, b)
    assert sorted(found.ranks) == [0, 1]
    assert found.cause.key == "comm_transfer_ns"
    assert any("A has 2 ranks and B 4" in reason for reason in found.cannot)


def test_a_missing_rank_is_said(tmp_path):
    a, b = run(tmp_path, "a", {}, {}), run(tmp_path, "b", {}, {})
    (b / "rank1.json").unlink()
    found = compared(a, b)
    assert "B has 1 of 2 ranks" in found.cannot and sorted(found.ranks) == [0]


def test_the_same_run_has_no_cause(tmp_path):
    a = run(tmp_path, "a", {}, {})
    found = compared(a, a)
    assert found.cause is None and "no category" in found.headline


def test_without_steps_nothing_is_claimed(tmp_path, capsys):
    a, b = run(tmp_path, "a", {}), run(tmp_path, "b", {}, steps=0)
    assert cli.main(["diff", str(a), str(b)]) == 2
    assert "the steps cannot be compared: B has no" in capsys.readouterr().out


def test_the_verb(tmp_path, capsys):
    a, b = run(tmp_path, "a", {}, {}), run(tmp_path, "b", {}, {}, comm=25)
    assert cli.main(["diff", str(a), str(b)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("step 40 us to 55 us (+38%): exposed communication")
    assert cli.main(["diff", str(a), str(b), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        sum(c["delta_ns"] for c in document["categories"].values()) == document["b_step_ns"] - document["a_step_ns"] == 15_000
    )
    assert document["cause"]["key"] == "comm_transfer_ns"
    assert cli.main(["diff", str(a), str(tmp_path / "nowhere")]) == 3
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["dlrm_8rank_v100", "h100_qwen_0.5b.json.gz", "cpu_gloo_rank34of300.json.gz"])
def test_real_traces_against_themselves(truth, name):
    path = truth / "traces" / "kineto" / name
    found = compared(path, path)
    assert found.cause is None
    assert all(m.delta_ns == 0 for m in found.moved)

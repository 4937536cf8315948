"""Real GPU traces against answers computed by other, plain code: equal to the nanosecond."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import dtprof
from dtprof.advise import findings, verdict
from dtprof.analyse import study_of
from dtprof.analyse.results import ACCOUNTING

DLRM = "dlrm_8rank_v100"


@pytest.fixture(scope="module")
def expected(truth):
    """Answers by name."""
    return {
        name: json.loads((truth / "traces" / f"expected_{name}.json").read_text())
        for name in ("kineto", "steps", "dlrm_collectives")
    }


@pytest.fixture(scope="module")
def accounts(truth, expected):
    """File -> account of its only part, each file opened by itself."""
    folder = truth / "traces" / "kineto"
    return {name: study_of(dtprof.open_run(folder / name)).result("accounting").parts[0] for name in expected["kineto"]}


def test_device_totals_equal_the_truth(accounts, expected):
    assert len(expected["kineto"]) >= 24
    for name, truth in expected["kineto"].items():
        got = vars(accounts[name].device)
        assert got == {key: truth[key] for key in got}, name


def test_ranks_and_events_are_all_there(truth, expected):
    folder = truth / "traces" / "kineto"
    for name, answer in expected["kineto"].items():
        run = dtprof.open_run(folder / name)
        worker = name.split("worker")[1].split("_")[0] if "worker" in name else None
        assert run.parts[0].rank == (answer["rank"] if answer["rank"] is not None else int(worker) if worker else None), name
        assert run.world_size == answer["world_size"], name
        assert len(run.table("events", 0)) == answer["spans"], name


def test_device_steps_equal_the_truth(accounts, expected):
    compared = 0
    for name, answer in expected["steps"].items():
        if answer["device_spans_without_launch"]:
            continue
        steps = accounts[name].steps
        assert [s.step for s in steps] == [s["step"] for s in answer["steps"]], name
        for step, right in zip(steps, answer["steps"], strict=True):
            parts = step.accounting
            got = {
                "step": step.step, "complete": step.complete, "dur_ns": step.dur_ns, "compute_ns": parts["compute_ns"],
                "copy_exposed_ns": parts["copy_exposed_ns"], "comm_hidden_ns": step.comm_hidden_ns,
                "comm_exposed_ns": sum(parts[k] for k in parts if k.startswith("comm_")),
                "idle_ns": sum(parts[k] for k in parts if k.startswith("idle_")),
            }  # fmt: skip
            assert got == right, name
            compared += 1
    assert compared >= 20


def test_accounting_sums_to_the_step_in_every_trace(accounts):
    steps = [s for a in accounts.values() for s in a.steps]
    assert len(steps) > 25
    for step in steps:
        assert tuple(step.accounting) == ACCOUNTING
        assert sum(step.accounting.values()) == step.dur_ns
        assert min(step.accounting.values()) >= 0


@pytest.fixture(scope="module")
def dlrm(truth):
    """The complete eight-rank set."""
    return study_of(dtprof.open_run(truth / "traces" / "kineto" / DLRM))


def test_eight_collectives_over_eight_ranks(dlrm, expected):
    operations = dlrm.result("comm").operations
    assert len(operations) == len(expected["dlrm_collectives"])
    for got, right in zip(operations, expected["dlrm_collectives"], strict=True):
        assert got.transfer_ns == right["transfer_ns"]
        assert [got.wait_ns[r] for r in range(8)] == right["wait_ns"]
        assert (got.last_rank, got.start_skew_ns, got.end_skew_ns) == (
            right["last_arriver"],
            right["start_skew_ns"],
            right["end_skew_ns"],
        )
        assert (got.n, got.n_present, got.matched_by, got.step) == (8, 8, "order", 10)
    assert [o.op for o in operations] == ["all_to_all"] * 4 + ["all_reduce", "all_to_all", "all_reduce", "all_reduce"]
    assert operations[4].busbw_gb_s == pytest.approx(1_576_964 / 86_000 * 2 * 7 / 8)


def test_one_host_is_never_shifted(dlrm):
    assert dlrm.result("comm").operations
    assert {p.clock_offset_ns for p in dlrm.run.parts} == {0}
    assert max(p.clock_residual_ns for p in dlrm.run.parts) < 7_000


def test_the_first_lines_tell_waiting_for_whom_and_what_is_larger(dlrm):
    lines = verdict(dlrm)
    assert "waiting for late ranks" in lines.verdict and "78% of it for rank 7" in lines.verdict
    assert "rank 7 enters step 10" in lines.why and "late, not slow" in lines.why
    assert any("larger still: 48% of the step is idle because nothing has been launched" in n for n in lines.next)
    rules = {f.rule: f for f in findings(dlrm)}
    assert rules["straggler.late_entry"].ranks == (7,)
    assert rules["straggler.late_entry"].seconds_per_step == pytest.approx(4.40e-3, rel=0.01)
    assert "straggler.compute_rank" not in rules
    exposed = np.mean([s.accounting["comm_wait_ns"] for p in dlrm.result("accounting").parts for s in p.steps]) / 1e9
    about_waiting = sum(f.seconds_per_step for r, f in rules.items() if r in ("straggler.late_entry", "comm.waiting"))
    # the mean over all ranks, and for the ranks that are waited for what each of the others waits
    assert exposed <= about_waiting <= exposed * 8 / 6


def test_with_three_ranks_of_eight_waits_are_unknown_and_bounds_are_marked(truth, tmp_path):
    for rank in range(3):
        source = next((truth / "traces" / "kineto" / DLRM).glob(f"worker{rank}_*"))
        shutil.copy(source, tmp_path)
    study = study_of(dtprof.open_run(tmp_path))
    operations = study.result("comm").operations
    assert len(operations) == 8
    for operation in operations:
        assert (operation.n, operation.n_present) == (8, 3)
        assert operation.transfer_ns is None and operation.last_rank is None and operation.busbw_gb_s is None
        assert set(operation.wait_ns.values()) == {None}
        assert operation.transfer_upper_ns == min(operation.dur_ns.values())
    for part in study.result("accounting").parts:
        assert part.steps[0].accounting["comm_wait_ns"] == part.steps[0].accounting["comm_transfer_ns"] == 0
    lines = verdict(study)
    assert "3 of 8" in lines.why and "cannot be told apart" in lines.why and "waiting included" in lines.verdict


def test_multimem_and_generic_kernels_have_their_operation(truth):
    folder = truth / "traces" / "kineto"
    b200 = dtprof.open_run(folder / "b200_rank0of8_71_groups_multimem.json.gz").table("comm", 0)
    assert b200.text("op").count("all_reduce") == 73 and b200.text("op").count("all_gather") == 1
    assert set(b200.text("bytes_known")) == {"exact"}
    amd = dtprof.open_run(folder / "mi300x_rank0of8_ddp_resnet.json.gz").table("comm", 0)
    assert amd.text("op").count("all_reduce") == 6 and amd.text("op").count("broadcast") == 6


def test_stream_waits_of_cuda_events_are_dependencies(truth):
    run = dtprof.open_run(truth / "traces" / "kineto" / "critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz")
    deps, names = run.table("deps", 0), run.table("events", 0).text("name")
    pairs = {(names[s], names[d]) for s, d in zip(deps["src"].tolist(), deps["dst"].tolist(), strict=True)}
    assert ("cudaEventRecord", "Stream Wait Event") in pairs

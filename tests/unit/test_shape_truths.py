"""The analyses find in every hand-made shape what is true of it by construction."""

import pytest

from dtprof import intervals
from dtprof.analyse import accounting
from dtprof.analyse.covers import PartView
from dtprof.analyse.results import ACCOUNTING
from dtprof.analyse.study import Study
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import US, matched


def accounts(run):
    result = accounting.analyse(Study(run, {}))
    return {(part.part, step.step): step for part in result.parts for step in part.steps}


def with_truth(key):
    return [name for name, make in SHAPES.items() if key in make().truth]


@pytest.mark.parametrize("name", SHAPES)
def test_every_step_sums_to_its_duration(name):
    for step in accounts(matched(SHAPES[name]())).values():
        assert sum(step.accounting.values()) == step.dur_ns
        assert set(step.accounting) == set(ACCOUNTING)
        assert min(step.accounting.values()) >= 0


@pytest.mark.parametrize("name", with_truth("accounting"))
def test_accounting(name):
    shape = SHAPES[name]()
    found = accounts(matched(shape))
    for key, expected in shape.truth["accounting"].items():
        if name == "gloo_cpu":
            assert {k: found[key].accounting[k] for k in expected} == expected
            assert found[key].dur_ns == shape.truth["step_us"] * US
        else:
            assert found[key].accounting == {**dict.fromkeys(ACCOUNTING, 0), **expected}


@pytest.mark.parametrize("name", with_truth("comm_hidden_us"))
def test_hidden_communication(name):
    shape = SHAPES[name]()
    found = accounts(matched(shape))
    assert {key: found[key].comm_hidden_ns // US for key in shape.truth["comm_hidden_us"]} == shape.truth["comm_hidden_us"]


@pytest.mark.parametrize("name", with_truth("complete"))
def test_completeness(name):
    shape = SHAPES[name]()
    assert {key: step.complete for key, step in accounts(matched(shape)).items()} == shape.truth["complete"]


@pytest.mark.parametrize("name", with_truth("collectives"))
def test_collectives(name):
    shape = SHAPES[name]()
    run = matched(shape)
    table, shares = run.table("collectives"), run.table("participations")
    rows = [table.row(i) for i in range(len(table))]
    found = {(row["op"], row["seq"]): row for row in rows}
    assert set(found) == set(shape.truth["collectives"])
    for key, expected in shape.truth["collectives"].items():
        row = found[key]
        waits = shares.take(shares["collective"] == row["id"])
        assert row["transfer"] == expected["transfer"]
        assert row["last_rank"] == expected["last"]
        assert [waits.row(i)["wait"] for i in range(len(waits))] == expected["wait"]
        assert row["matched_by"] == "seq"
        for column in ("n", "n_present", "transfer_upper"):
            assert row[column] == expected.get(column, row[column])


def test_a_batch_counts_its_time_once_and_has_no_wait():
    shape = SHAPES["pipeline_batches"]()
    run = matched(shape)
    for part, us in shape.truth["comm_us"].items():
        assert intervals.total(PartView(run, part).device_comm) == us * US
    assert run.table("collectives")["one_sided"].all()
    assert not run.table("participations").known("wait").any()


def test_device_zero_of_two_processes_is_two_devices():
    shape = SHAPES["both_call_it_device_0"]()
    result = accounting.analyse(Study(matched(shape), {}))
    assert {p.part: p.device.busy_ns // US for p in result.parts} == shape.truth["busy_us"]


def test_attempts_never_match_each_other():
    shape = SHAPES["restarted_rank"]()
    run = matched(shape)
    table, shares = run.table("collectives"), run.table("participations")
    attempt = {p.ordinal: p.attempt for p in run.parts}
    present = {"attempt 0": [], "attempt 1": []}
    for i in range(len(table)):
        attempts = {attempt[p] for p in shares["part"][shares["collective"] == i].tolist()}
        assert len(attempts) == 1
        present[f"attempt {attempts.pop()}"].append(int(table["n_present"][i]))
    assert present == shape.truth["present"]
    assert max(shares["dur"]) == shape.truth["longest_operation_us"] * US


def test_launches_without_kernels_are_missing_data_and_not_idle():
    shape = SHAPES["cuda_graph_under_recorded"]()
    run = matched(shape)
    assert accounting.graphs_without_kernels(PartView(run, 0)) == shape.truth["launches_without_kernel"]
    (part,) = accounting.analyse(Study(run, {})).parts
    assert "2 graph launches" in part.unreliable
    assert all(step.accounting["idle_host_ns"] == step.accounting["idle_dependency_ns"] == 0 for step in part.steps)


def test_a_cpu_job_has_no_device_time():
    result = accounting.analyse(Study(matched(SHAPES["gloo_cpu"]()), {}))
    assert not result.on_device
    assert all(p.device.span_ns == 0 for p in result.parts)

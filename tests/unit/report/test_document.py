import json
from dataclasses import replace

import numpy as np
import pytest

from dtprof.analyse.results import ACCOUNTING
from dtprof.findings import Prediction
from dtprof.report.document import document_of, plain
from tests.unit.report import build

TOP = {"schema", "source", "ranks", "collectives", "findings", "quality", "own_cost"}
DEVICE = {
    "span_ns",
    "busy_ns",
    "idle_ns",
    "compute_ns",
    "comm_ns",
    "copy_ns",
    "comm_overlapped_by_compute_ns",
    "exposed_comm_ns",
    "comm_kernels",
}
HOST = {"compute_ns", "comm_ns", "exposed_comm_ns"}
COLLECTIVE = {
    "op",
    "group",
    "seq",
    "n",
    "n_present",
    "size_bytes",
    "first_start_ns",
    "transfer_ns",
    "transfer_upper_ns",
    "wait_ns",
    "last_arriver",
    "start_skew_ns",
    "end_skew_ns",
    "algbw_gb_s",
    "busbw_gb_s",
    "matched_by",
}
FINDING = {
    "rule",
    "severity",
    "title",
    "ranks",
    "steps",
    "seconds_per_step",
    "evidence",
    "edit",
    "prediction",
    "apply",
    "verify",
}


def load(facts):
    return json.loads(json.dumps(document_of(facts), allow_nan=False))


@pytest.mark.parametrize("name", list(build.ALL))
def test_keys_of_the_document(name):
    doc = load(build.ALL[name]())
    assert doc.keys() >= TOP
    assert doc["schema"] == 1
    assert doc["source"].keys() >= {"path", "format", "world_size", "ranks", "steps"}
    assert doc["verdict"].keys() >= {"header", "verdict", "why", "next", "commands"}
    for rank in doc["ranks"]:
        assert rank.keys() >= {"rank", "part", "device", "host", "steps"}
        assert rank["device"].keys() >= DEVICE
        assert rank["host"].keys() >= HOST
        for step in rank["steps"]:
            assert step.keys() >= {"step", "complete", "dur_ns", "accounting", "comm_hidden_ns"}
    for collective in doc["collectives"]:
        assert collective.keys() >= COLLECTIVE
    for finding in doc["findings"]:
        assert finding.keys() >= FINDING
    for row in doc["quality"]:
        assert row.keys() >= {"rank", "source", "what", "count", "effect"}


@pytest.mark.parametrize("name", list(build.ALL))
def test_accounting_sums_exactly_and_times_are_integers(name):
    for rank in load(build.ALL[name]())["ranks"]:
        for step in rank["steps"]:
            assert list(step["accounting"]) == list(ACCOUNTING)
            assert sum(step["accounting"].values()) == step["dur_ns"]
            assert all(isinstance(v, int) for v in step["accounting"].values())


def test_source_and_own_cost():
    doc = load(build.two_gloo())
    assert doc["source"] == {
        "path": "runs/0007",
        "format": "dtprof",
        "world_size": 2,
        "ranks": [0, 1],
        "steps": [5, 6, 7, 8, 9],
    }
    assert doc["own_cost"] == {"fraction": 0.002, "low": 0.001, "high": 0.004}
    assert load(build.eight_ranks())["own_cost"] is None


def test_waits_by_rank():
    first = load(build.eight_ranks())["collectives"][0]
    assert first["wait_ns"]["1"] == 7_610_000
    assert first["last_arriver"] == 7
    assert (first["kind"], first["transfer_ns"], first["transfer_upper_ns"]) == ("collective", 10_000, 10_000)


def test_partial_set_has_nulls_and_bounds():
    for collective in load(build.eight_ranks(range(3)))["collectives"]:
        assert collective["transfer_ns"] is None
        assert collective["last_arriver"] is None
        assert collective["busbw_gb_s"] is None
        assert collective["wait_ns"] is None
        assert collective["transfer_upper_ns"] > 0


def test_one_sided_operations_say_so():
    facts = build.eight_ranks()
    one = replace(facts.comm.operations[0], one_sided=True, transfer_ns=None)
    doc = load(replace(facts, comm=replace(facts.comm, operations=(one,))))
    assert doc["collectives"][0]["kind"] == "one-sided"


def test_findings_carry_evidence_with_events_and_prediction():
    facts = build.eight_ranks()
    found = load(facts)["findings"][0]
    assert found["evidence"][0]["events"] == {"7": [1, 2, 3], "0": [4]}
    assert found["evidence"][0]["event_count"] == 4
    assert found["prediction"] is None
    assert found["ranks"] == [7]
    told = replace(build.LATE, prediction=Prediction(0.004, 0.003, 0.005, 0.01, 0.02), edit={"ideal.rank": 7})
    found = load(replace(facts, findings=(told,)))["findings"][0]
    assert found["prediction"] == {
        "seconds_per_step": 0.004,
        "low": 0.003,
        "high": 0.005,
        "replay_error": 0.01,
        "unexplained_fraction": 0.02,
    }
    assert found["edit"] == {"ideal.rank": 7}


def test_at_most_twenty_kernels():
    facts = replace(build.eight_ranks(), kernels=build.kernel_result(50))
    kernels = load(facts)["kernels"]
    assert len(kernels["top"]) == 20
    assert kernels["names"] == 50
    totals = [k["total_ns"] for k in kernels["top"]]
    assert totals == sorted(totals, reverse=True)


def test_plain_makes_json_of_numpy_and_null_of_what_is_no_number():
    value = plain({1: np.int64(3), "a": (np.float64(0.5), float("nan"), float("inf")), "b": np.bool_(True)})
    assert value == {"1": 3, "a": [0.5, None, None], "b": True}
    assert type(value["1"]) is int

"""The diagnosis benchmark scores by its own declared truths: here on reports and runs made by hand."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")  # the faults are those of the sample jobs

from benchmarks import diagnosis_cases as cases
from benchmarks.diagnosis_runs import (
    RECORD,
    Case,
    command_of,
    healthy_cases,
    pair_cases,
    recorded,
    single_cases,
)
from benchmarks.diagnosis_score import Noise, at_place, naming, rows_of, summary_of, untrue
from dtprof.advise.recommend import rules
from dtprof_sample_jobs.command import _job_options
from dtprof_sample_jobs.common.faults import KINDS

DDP = cases.SETTINGS["ddp"]


def finding(rule, ranks, seconds=None, severity="high", title="", bound=False):
    return {
        "rule": rule, "ranks": ranks, "seconds_per_step": seconds, "severity": severity, "title": title, "evidence": [],
        "bound": bound,
    }  # fmt: skip


def run(folder, case, step_ms):
    part = folder / case.name / "part00000"
    part.mkdir(parents=True)
    steps = [{"step": n, "host_dur": round(step_ms * 1e6), "kind": "train"} for n in range(20)]
    (part / "steps.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps))


@pytest.fixture
def folder(tmp_path):
    """Two healthy runs of 40 and 41 ms, so that a truth counts from 3 ms on."""
    for case, step in ((Case("ddp"), 40), (Case("ddp", (), 1), 41)):
        run(tmp_path, case, step)
    return tmp_path


def noise(folder):
    return Noise([Case("ddp"), Case("ddp", (), 1)], folder)


def score(folder, faults, findings):
    return rows_of(Case("ddp", faults), {"findings": findings}, noise(folder), folder)


def test_noise_is_the_distance_of_healthy_runs(folder):
    assert noise(folder).usual("ddp") == pytest.approx(0.0405)
    assert noise(folder).of("ddp") == pytest.approx(0.001)
    assert noise(folder).of("moe") == pytest.approx(0.001)
    assert noise(folder).usual("moe") is None


def test_a_finding_at_the_place_is_found_and_priced(folder):
    (row,) = score(folder, ("slow_rank=1:20ms",), [finding("straggler.compute_rank", [1], 0.022)])
    assert (row["found"], row["right_place"], row["false"]) == (True, True, [])
    assert row["price_error"] == pytest.approx(0.1)


def test_another_rank_is_the_wrong_place_and_not_true(folder):
    (row,) = score(folder, ("slow_rank=1:20ms",), [finding("straggler.compute_rank", [0], 0.02)])
    assert (row["found"], row["right_place"]) == (True, False)
    assert len(row["false"]) == 1


def test_of_two_findings_the_one_at_the_place_counts(folder):
    told = [finding("straggler.compute_rank", [0], 0.01), finding("straggler.host_rank", [1], 0.02)]
    best = naming(DDP, "slow_rank=1:20ms", told)
    assert best["ranks"] == [1]


def test_nothing_told_is_nothing_found(folder):
    (row,) = score(folder, ("slow_rank=1:20ms",), [finding("comm.exposed", [0, 1])])
    assert (row["found"], row["right_place"], row["price_error"], row["rule"]) == (False, False, None, None)


def test_a_bound_is_wrong_only_where_it_is_too_low(folder):
    for seconds, error in ((0.03, 0.0), (0.015, 0.25)):
        (row,) = score(folder, ("slow_rank=1:20ms",), [finding("straggler.compute_rank", [1], seconds, bound=True)])
        assert row["price_error"] == pytest.approx(error)


def test_a_stall_of_saving_comes_on_top_of_what_saving_costs_anyway(folder):
    settings = noise(folder)
    case = Case("elastic", ("checkpoint_stall=1:60ms",))
    rows_of(Case("elastic"), {"findings": [finding("checkpoint.stall", [0, 1], 0.003)]}, settings, folder)
    (row,) = rows_of(case, {"findings": [finding("checkpoint.stall", [1], 0.0165)]}, settings, folder)
    assert row["truth_s"] == pytest.approx(0.012 + 0.003)
    assert row["price_error"] == pytest.approx(0.1)


def test_a_truth_inside_the_noise_has_no_price_error(folder):
    (row,) = score(folder, ("slow_rank=1:2ms",), [finding("straggler.compute_rank", [1], 0.004)])
    assert (row["found"], row["truth_s"], row["price_error"]) == (True, 0.002, None)


def test_a_measured_truth_is_the_distance_from_the_healthy_runs(folder):
    run(folder, Case("ddp", ("tiny_buckets=all:0.05",)), 50.5)
    (row,) = score(folder, ("tiny_buckets=all:0.05",), [finding("ddp.buckets", [0, 1], 0.01)])
    assert row["truth_s"] == pytest.approx(0.01) and row["price_error"] == pytest.approx(0.0)
    assert row["right_place"]


def test_a_fault_of_all_ranks_is_not_told_of_one():
    rule = cases.NAMES["find_unused"].rules[0]
    assert at_place(DDP, "find_unused=all", finding(rule, [0, 1]))
    assert at_place(DDP, "find_unused=all", finding(rule, []))
    assert not at_place(DDP, "find_unused=all", finding(rule, [1]))


def test_a_stage_or_an_expert_is_to_be_named_in_words():
    pipeline = cases.SETTINGS["pipeline4"]
    rule = cases.NAMES["stage_imbalance"].rules[0]
    assert at_place(pipeline, "stage_imbalance=2:4ms", finding(rule, [2], title="Stage 2 is slow"))
    assert not at_place(pipeline, "stage_imbalance=2:4ms", finding(rule, [2], title="A stage is slow"))
    moe = cases.SETTINGS["moe"]
    assert cases.places_of(moe, cases.planted("router_skew=6:0.9")) == ((1,),)


def test_the_truth_of_an_uneven_split_is_by_its_arithmetic():
    # of 2 x 3 x 20 ms two ranks have 60 ms each; the last one has 1.5 times the mean
    assert cases.truth_of(cases.SETTINGS["context_parallel"], "unbalanced_split=all") == pytest.approx(0.030)


def test_a_pair_is_two_rows_and_counts_when_both_are_named(folder):
    pair = ("slow_rank=1:20ms", "memory_creep=0:2")
    one = score(folder, pair, [finding("straggler.compute_rank", [1], 0.02)])
    both = score(folder, pair, [finding("straggler.compute_rank", [1], 0.02), finding("memory.creep", [0])])
    assert [r["with"] for r in one] == [pair[1], pair[0]]
    assert summary_of(one)["pair_recall"] == 0.0
    assert summary_of(both)["pair_recall"] == 1.0
    assert summary_of(both)["recall"] is None


def test_a_healthy_run_has_no_culprit(folder):
    told = [
        finding("comm.waiting", [1]),
        finding("straggler.compute_rank", [0], severity="low"),
        finding("comm.exposed", [0, 1]),
    ]
    (row,) = score(folder, (), told)
    assert row["fault"] is None and len(row["false"]) == 1
    assert summary_of([row])["false_findings"] == 1 and summary_of([row])["healthy_runs"] == 1


def test_what_follows_from_a_fault_is_true_of_the_run():
    waiting = [finding("comm.waiting", [1])]
    assert untrue(DDP, ("slow_data=1:20ms",), {"findings": waiting}) == []
    assert len(untrue(DDP, ("slow_data=0:20ms",), {"findings": waiting})) == 1
    assert len(untrue(DDP, ("memory_creep=1:2",), {"findings": waiting})) == 1


def test_a_record_survives_a_benchmark_that_was_stopped(tmp_path):
    case = Case("ddp", ("slow_rank=1:20ms",))
    (tmp_path / case.name).mkdir()
    (tmp_path / case.name / "manifest.json").write_text("{}")
    line = json.dumps({"name": case.name, "code": 0, "seconds": 1.0, "load": 0.5})
    (tmp_path / RECORD).write_text(line + "\n" + line.replace(case.name, "gone") + "\n" + line[:20])
    assert set(recorded(tmp_path)) == {case.name}


def test_every_kind_of_fault_is_run_in_every_way_that_the_jobs_have():
    planted = {(cases.SETTINGS[c.setting].job, c.faults[0].partition("=")[0]) for c in single_cases()}
    assert {kind for _, kind in planted} == set(KINDS)
    names = [c.name for c in [*healthy_cases(52), *single_cases(), *pair_cases()]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", [*single_cases(), *pair_cases()], ids=lambda c: c.name)
def test_the_command_of_every_case_is_accepted_by_its_job(case, tmp_path, monkeypatch):
    setting = cases.SETTINGS[case.setting]
    if setting.lab is not None:
        monkeypatch.setenv("DTPROF_LAB", setting.lab)
    words = command_of(case, tmp_path)
    assert words[:2] == ["job", setting.job]
    words = [
        w for n, w in enumerate(words) if w not in ("--lab", "--json", "--ranks") and words[n - 1] not in ("--lab", "--ranks")
    ]
    _job_options(setting.job, words[2:], setting.ranks)


def test_every_rule_that_is_expected_exists():
    known = {rule.id for rule in rules()}
    for kind, expected in cases.NAMES.items():
        assert set(expected.rules) | set(expected.follows) <= known, kind

"""Every rule on runs of which a part is missing: none says what cannot be known, and the report says what could not be seen."""

from __future__ import annotations

import json

import pytest

from dtprof.advise.recommend import rules
from dtprof.report.facts import gather
from tests.unit.kineto_maker import Trace, study, verdict

RULES = rules()
STEPS, STEP_US, LATER_US = 8, 10_000, 3_000
WORLD = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float"}


def one_rank(rank, slow, *, steps=range(STEPS), marked=True, graphs=False):
    """A rank of two that computes 6 ms, and 3 ms more where it is the slow one, and then reduces with the other for 100 us."""
    t = Trace(rank, 2)
    for step in steps:
        at = STEP_US * step
        if marked:
            t.step(step, at, at + STEP_US)
        begin = at + 6_100 + (LATER_US if slow and rank == 1 else 0)
        end = at + 6_200 + (LATER_US if slow else 0)
        if graphs:
            t.launch(at, at + 5, "cudaGraphLaunch")
        else:
            t.range("forward", at, at + 50)
            t.run("gemm", at, at + 10, begin)
        t.op("record_param_comms", at + 55, at + 65, **{
            "Collective name": "allreduce", "Seq": step, "In msg nelems": 1000, "Out msg nelems": 1000, **WORLD
        })  # fmt: skip
        t.run("ncclDevKernel_AllReduce", at + 60, begin, end, 20)
        t.run("gemm", at + 70, end, at + STEP_US)
    return t


def whole(folder, slow):
    for rank in range(2):
        one_rank(rank, slow).write(folder / f"rank{rank}.json")


def partial(folder, slow):
    one_rank(0, slow).write(folder / "rank0.json")


def other_steps(folder, slow):
    for rank, steps in enumerate((range(STEPS // 2), range(STEPS // 2, STEPS))):
        one_rank(rank, slow, steps=steps).write(folder / f"rank{rank}.json")


def unmarked(folder, slow):
    for rank in range(2):
        one_rank(rank, slow, marked=False).write(folder / f"rank{rank}.json")


def cut(folder, slow):
    whole(folder, slow)
    text = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(text[: len(text) * 6 // 10])


def graphs(folder, slow):
    for rank in range(2):
        one_rank(rank, slow, graphs=True).write(folder / f"rank{rank}.json")


# shape -> (how it is made, rules that are right about it with a slow rank, what the report says was not seen)
SHAPES = {
    "whole": (whole, {"straggler.compute_rank"}, None),
    "partial": (partial, {"comm.exposed"}, "1 of 2 ranks"),
    "other steps": (other_steps, {"comm.exposed"}, "step"),
    "unmarked": (unmarked, set(), "no steps are marked"),
    "cut": (cut, {"straggler.compute_rank", "comm.exposed"}, "cut off"),
    "graphs": (graphs, {"comm.waiting"}, "graph"),
}


@pytest.fixture(scope="module", params=SHAPES)
def shape(request, tmp_path_factory):
    """(name, study without a fault, study with a slow rank)."""
    studies = []
    for slow in (False, True):
        folder = tmp_path_factory.mktemp("shape")
        SHAPES[request.param][0](folder, slow)
        studies.append(study(folder))
    return (request.param, *studies)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_only_what_can_be_known(rule, shape):
    name, healthy, slow = shape
    assert [f.title for f in rule.find(healthy) if f.severity != "low"] == []
    told = [f for f in rule.find(slow) if f.severity != "low"]
    assert {f.rule for f in told} <= SHAPES[name][1], [f.title for f in told]
    for finding in told:
        assert set(finding.ranks) <= set(slow.run.ranks)
        if finding.rule.startswith("straggler."):
            assert finding.ranks == (1,)
        if finding.rule == "comm.exposed":
            assert finding.bound


def test_what_is_there_is_found_and_what_is_not_is_named(shape):
    name, _, slow = shape
    rule_ids = {f.rule for rule in RULES for f in rule.find(slow) if f.severity != "low"}
    assert rule_ids == SHAPES[name][1]
    facts = gather(slow)
    said = json.dumps([str(facts), verdict(slow).verdict, verdict(slow).why]).lower()
    if SHAPES[name][2] is not None:
        assert SHAPES[name][2] in said

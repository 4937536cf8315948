"""What the report says of pipelines, experts and workers."""

from dtprof.analyse import study_of
from dtprof.report.document import document
from dtprof.report.parallel import gather, sentences
from tests.unit.model.test_pipeline import run_of, seen
from tests.unit.shapes.build import matched
from tests.unit.shapes.devices import gloo_cpu
from tests.unit.shapes.moe import moe_all_to_all_v


def said(run):
    return {label: text.replace("\xa0", " ") for label, text in sentences(gather(study_of(run)))}


def test_a_pipeline_has_its_bubble_beside_that_of_theory():
    run = run_of(seen(2, 8))[0]
    text = said(run)["PIPELINE"]
    assert text.startswith("2 stages, 8 micro-batches: bubble 11% (equal stages: 11%)")
    assert "warm-up" in text and "drain" in text
    (pipeline,) = document(study_of(run))["pipelines"]
    assert pipeline["stages"] == 2 and len(pipeline["ranks"]) == 2


def test_experts_have_their_tokens():
    run = matched(moe_all_to_all_v())
    assert "4 experts in 1 layer: the hottest, 3 in moe.0, has 2.08 times the mean" in said(run)["EXPERTS"]
    (layer,) = document(study_of(run))["experts"]
    assert layer["tokens"] == {"0": 45.0, "1": 35.0, "2": 45.0, "3": 135.0}


def test_other_jobs_have_nothing_of_it():
    run = matched(gloo_cpu())
    assert said(run) == {}
    found = document(study_of(run))
    assert found["pipelines"] == found["experts"] == found["workers"] == []

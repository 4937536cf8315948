"""Plan: the layout of a run that recorded its model, and of presets beside runs that did not."""

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof.numbers import seconds
from dtprof.plan.choices import Choices, choices
from dtprof.plan.search.words import brief
from tests.unit.dashboards.conftest import Drawn, write_run
from tests.unit.plan.test_own import expected_s, run_of


def test_a_run_that_recorded_its_model_is_planned_by_its_own_step(draw, tmp_path):
    more = {"strategy": "zero3", "checkpointing": "full", "batch": 2}
    run = run_of(seconds=1.2 * expected_s(run_of(**more)), **more)
    drawn = draw(write_run(run, tmp_path / "mine"), page="plan")
    assert drawn.box("Model").value == "this run"
    known = choices(run)
    assert isinstance(known, Choices)
    assert brief(known.now.layout) in drawn.text
    assert {"Layouts", "Where the step goes", "Where the memory goes", "Why the others lose"} <= set(drawn.heads)
    assert "as it runs" in drawn.text
    assert seconds(known.now.seconds).replace("\u00a0", " ") == seconds(known.own.step_s).replace("\u00a0", " ")


def test_a_run_that_did_not_says_so_and_presets_are_planned(draw, shapes):
    drawn = draw(shapes, page="plan", run="gloo_cpu")
    assert "This run gives no plan" in drawn.heads
    assert "fastest layout that fits" in drawn.text
    drawn.box("Model").select("Llama 3 70B")
    drawn.tester.run()
    drawn = Drawn(drawn.tester)
    assert not drawn.tester.exception
    assert "fastest layout that fits" in drawn.text
    drawn.box("GPUs").select(1)
    drawn.tester.run()
    drawn = Drawn(drawn.tester)
    assert not drawn.tester.exception
    assert "layouts fits Llama 3 70B" in drawn.text
    assert "It fits" in drawn.text


def test_a_model_is_offered_the_lengths_that_it_takes(draw, shapes):
    drawn = draw(shapes, page="plan", run="gloo_cpu")
    assert drawn.box("Tokens per sequence").value == 4096
    for model, longest in (("GPT-3 125M", 2048), ("BERT-base", 512)):
        drawn.box("Model").select(model)
        drawn.tester.run()
        drawn = Drawn(drawn.tester)
        assert not drawn.tester.exception
        lengths = [int(o) for o in drawn.box("Tokens per sequence").options]
        assert max(lengths) == longest and drawn.box("Tokens per sequence").value == longest
        assert "fastest layout that fits" in drawn.text

"""What-if: the edits that the run's models follow, trust before anything is chosen, what was measured after."""

import re
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

import dtprof
from dtprof.advise import findings
from dtprof.advise.verify import Saving, VerdictRow
from dtprof.analyse import study_of
from dtprof.edits import KEYS, Edit, parse_edits
from dtprof.model.fsdp.whatif import KEYS as FSDP_KEYS
from dtprof.model.moe import whatif as moe
from dtprof.model.offered import offers
from dtprof.model.on_device import knows
from dtprof.model.outcome import Outcome
from dtprof.model.pipeline.whatif import KEYS as PIPELINE_KEYS
from dtprof.model.whatif import DDP_KEYS, what_if
from dtprof.numbers import percent, time
from dtprof_dashboards.controls import VALUES
from dtprof_dashboards.pages import whatif
from tests.unit.dashboards.conftest import Drawn, write_run
from tests.unit.model.test_fsdp import measured


def plain(text):
    """Words as ``Drawn.text`` has them."""
    return " ".join(text.split())


@pytest.fixture
def fsdp(tmp_path):
    """A measured FSDP2 run on disk."""
    run, _ = measured(count=3)
    run.manifest.knobs.pop("simulated")
    return write_run(run, tmp_path / "fsdp")


def verified(folder, share, **edit):
    """A verdict in the run's record: these edits save ``share`` of the step, 20 points more or less."""
    saving = Saving(
        seconds_per_step=share, low=share - 0.2, high=share + 0.2, share=share, share_low=share - 0.2, share_high=share + 0.2
    )
    row = VerdictRow(
        outcome="confirmed", text="", rule=None, edit={k.replace("__", "."): v for k, v in edit.items()}, command=["x"],
        paired=True, measured=6, noise=0.01, baseline_s=1.0, candidate_s=1 - share, achieved=saving, prediction_held=True,
        predicted={"seconds_per_step": share, "low": share - 0.1, "high": share + 0.1}, time=1_800_000_000,
    )  # fmt: skip
    (folder / "verdicts.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")


def test_every_edit_that_a_model_follows_is_offered_and_no_other(draw, fsdp):
    drawn = draw(fsdp, page="whatif")
    labels = {s.label for s in drawn.tester.selectbox}
    offered = {key for offer in offers(dtprof.open_run(fsdp)) for key in offer.keys}
    assert {"fsdp.prefetch", "fsdp.wrap", "net.latency_scale"} <= offered == labels - {"Run"}
    assert "ddp.bucket_cap_mb" in drawn.text.partition("What no model of this run follows")[2]


def test_trust_is_told_before_anything_is_chosen(draw, fsdp):
    told = what_if(dtprof.open_run(fsdp), parse_edits(["net.bandwidth_scale=1"]))
    text = draw(fsdp, page="whatif").text
    assert f"Replay error {percent(told.replay_error)}" in text and "Unexplained" in text
    assert text.index("Replay error") < text.index("The step as it is")


def test_a_choice_is_predicted(draw, fsdp):
    told = what_if(dtprof.open_run(fsdp), parse_edits(["fsdp.prefetch=2"]))
    drawn = draw(fsdp, page="whatif")
    drawn.box("fsdp.prefetch").set_value("2")
    again = Drawn(drawn.tester.run())
    assert told.predicted_ns is not None and plain(f"→ {time(told.predicted_ns)}") in again.text
    assert "The whole range" in again.heads and "measured after" not in again.markup


def test_what_was_measured_after_stands_beside_what_was_predicted(draw, fsdp):
    told = what_if(dtprof.open_run(fsdp), parse_edits(["fsdp.prefetch=2"]))
    verified(fsdp, 0.5, fsdp__prefetch=2)
    drawn = draw(fsdp, page="whatif")
    assert "predicted saving" in drawn.text and "1 of 1 predictions held" in drawn.text
    drawn.box("fsdp.prefetch").set_value("2")
    again = Drawn(drawn.tester.run())
    half = plain(time(told.measured_ns / 2))
    assert re.search(rf"measured after · not split into parts {half}", again.text)
    assert "the prediction held" in again.text and "Measured after −50%" in again.text
    assert f"fsdp.prefetch=2 · measured after: {half}" in again.text
    drawn.box("fsdp.prefetch").set_value("1")
    assert "measured after · not split" not in Drawn(drawn.tester.run()).text


def test_reset_takes_a_change_back(draw, shapes):
    drawn = draw(shapes, page="whatif", run="gloo_cpu")
    assert "Choose a change at the left" in drawn.text
    drawn.box("net.bandwidth_scale").set_value("2").run()
    texts = [e.proto.bytes.decode() for e in drawn.tester.get("bidi_component")]
    assert any("Prove it" in text or "No prediction" in text for text in texts)
    drawn.tester.button[0].click().run()
    texts = [e.proto.bytes.decode() for e in drawn.tester.get("bidi_component")]
    assert any("Choose a change at the left" in text for text in texts)


def test_of_a_large_run_some_steps_are_replayed_and_that_is_said(draw, truth, monkeypatch):
    from dtprof_dashboards import opened

    path = truth / "traces" / "kineto" / "a100_rank3of8_allreduce_alltoall.json.gz"
    assert "replayed are steps" not in draw(path, page="whatif").text.lower()
    monkeypatch.setattr(opened, "MOST_REPLAYED", 100)
    opened.read.clear()
    assert "Replayed are steps 1010 to 1012 of 5, for the run has" in draw(path, page="whatif").text


def test_every_key_that_a_model_may_follow_has_values_to_choose_from():
    graph = {key for key in KEYS if knows([Edit(key, True)])}
    followed = {*PIPELINE_KEYS, *FSDP_KEYS, *DDP_KEYS, *graph, "ideal.loader"} - {"ideal.rank"}
    assert followed <= VALUES.keys() <= KEYS.keys()
    for key, values in VALUES.items():
        assert parse_edits(f"{key}={value}" for value in values[:1])
        for value in values:
            KEYS[key].read(value)


def test_a_finding_with_a_prediction_alone_says_what_it_saves(draw, fsdp):
    told = [f for f in findings(study_of(dtprof.open_run(fsdp))) if f.prediction is not None and f.seconds_per_step is None]
    text = draw(fsdp, page="overview").text
    assert told and text.count("predicted") >= len(told)
    for finding in told:
        assert re.search(re.escape(plain(finding.title)) + r".{0,60}saves [\d.]+ (ms|us), predicted", text)


def test_a_recorded_command_is_run_again_into_another_folder():
    from dtprof_dashboards.pages.whatif import _again

    assert _again(["python", "-m", "job", "--out", "runs/a", "--steps", "4", "--out", "runs/a"]) == "python -m job --steps 4"
    assert _again([]) == ""


@pytest.mark.parametrize(("model", "limit"), [(moe.MODEL, "10%"), ("step graph", "5.0%")])
def test_what_is_unexplained_is_held_to_the_limit_of_its_model(model, limit):
    outcome = Outcome((), model, None, None, None, None, 0.01, 0.07, ())
    view = SimpleNamespace(facts=SimpleNamespace(verdicts=()))
    (tile,) = [t for t in whatif._trust(view, outcome) if t.name == "Unexplained"]
    assert tile.note == f"{'✓' if limit == '10%' else '!'} limit {limit}"

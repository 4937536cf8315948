"""Verify with commands whose steps take a given time: verdicts, the file they are kept in, the report's record."""

import json
import sys

import pytest

from dtprof import cli
from dtprof.advise.verify import _held, _saving, verdicts
from dtprof.edits import Edit
from dtprof.launch import pairs as pairs_module
from dtprof.model.outcome import Outcome, withheld
from tests.unit.cli.test_gate import RECORDED


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a recorded run in ``run`` (steps of 10 ms) and ``job.py MS``, whose steps take that long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(RECORDED)
    part = tmp_path / "run" / "part00000"
    part.mkdir(parents=True)
    rows = [
        {"step": k, "host_ts": 10**18 + k * 10**7, "host_dur": 10**7, "captured": False, "kind": "train"} for k in range(20)
    ]
    (part / "steps.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (part / "part.json").write_text(json.dumps({"ordinal": 0, "rank": 0, "world_size": 1}))
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({"world_size": 1}))
    return tmp_path


@pytest.fixture
def faster(monkeypatch):
    """The edited side takes this part of its time: what an edit gains is the job's business and not verify's."""

    def set_to(factor):
        real = pairs_module.run_once

        def run_once(side, folder, **options):
            plain = pairs_module.Side(side.name, side.command)
            made = real(plain, folder, **options)
            scale = factor if side.edits else 1.0
            return pairs_module.RunTime(made.folder, {s: int(ns * scale) for s, ns in made.steps.items()}, made.whole_s)

        monkeypatch.setattr(pairs_module, "run_once", run_once)

    return set_to


def command(ms=10):
    return ["--", sys.executable, "-I", "-S", "job.py", str(ms)]


@pytest.mark.parametrize(("factor", "code", "outcome"), [(0.8, 0, "confirmed"), (1.0, 1, "refuted"), (1.3, 1, "refuted")])
def test_an_edit_is_proved_or_refuted_and_kept(factor, code, outcome, home, faster, capsys):
    faster(factor)
    words = ["verify", "run", "--set", "ddp.bucket_cap_mb=50", "--pairs", "7", "--json", *command()]
    assert cli.main(words) == code
    printed = json.loads(capsys.readouterr().out)
    (kept,) = verdicts(home / "run")
    assert kept.outcome == printed["outcome"] == outcome
    assert kept.edit == {"ddp.bucket_cap_mb": 50.0} and kept.paired and kept.predicted is None and kept.prediction_held is None
    assert kept.achieved.share == pytest.approx(1 - factor, abs=1e-6)
    assert kept.achieved.seconds_per_step == pytest.approx(0.010 * (1 - factor), abs=1e-5)
    assert kept.achieved.low <= kept.achieved.seconds_per_step <= kept.achieved.high


def test_the_report_shows_the_record(home, faster, capsys):
    faster(0.8)
    for _ in range(2):
        cli.main(["verify", "run", "--set", "ddp.static_graph=true", "--pairs", "7", *command()])
    with (home / "run" / "verdicts.jsonl").open("a") as file:
        file.write('{"torn')
    capsys.readouterr()
    assert cli.main(["report", "run"]) == 0
    text = capsys.readouterr().out
    assert text.count("CONFIRMED: ddp.static_graph=true: step 10.0 ms") == 2
    assert cli.main(["report", "run", "--json", "--html", "r.html"]) == 0
    assert len(json.loads(capsys.readouterr().out)["verdicts"]) == 2
    assert "CONFIRMED" in (home / "r.html").read_text()


def finding(monkeypatch, **changes):
    from dtprof import advise
    from dtprof.findings import Finding

    values = {"rule": "straggler.compute_rank", "severity": "high", "title": "t", "ranks": (1,), "steps": (1,),
              "seconds_per_step": 0.004, "evidence": (), "why": "", "next": "", "apply": "", "verify": ""}  # fmt: skip
    monkeypatch.setattr(advise, "findings", lambda study: [Finding(**{**values, **changes})])


def test_a_rule_without_an_edit_is_measured_again_and_says_so(home, monkeypatch, capsys):
    finding(monkeypatch)
    assert cli.main(["verify", "run", "--rule", "straggler.compute_rank", "--json", *command(6)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert not row["paired"] and row["edit"] is None and row["measured"] == 5
    assert "unpaired" in row["text"] and "a change of the machine" in row["text"]
    assert row["achieved"]["share"] == pytest.approx(0.4, abs=0.001)
    assert cli.main(["verify", "run", "--rule", "straggler.compute_rank", *command(10)]) == 1


def test_a_prediction_is_held_against_what_was_achieved(home, faster, monkeypatch, capsys):
    from dtprof.findings import Prediction

    faster(0.8)
    finding(
        monkeypatch,
        rule="ddp.buckets",
        edit={"ddp.bucket_cap_mb": 50},
        prediction=Prediction(0.002, 0.0015, 0.0025, 0.01, 0.01),
    )
    assert cli.main(["verify", "run", "--rule", "ddp.buckets", "--pairs", "7", "--json", *command()]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["prediction_held"] is True and row["predicted"]["seconds_per_step"] == 0.002 and "held" in row["text"]
    finding(
        monkeypatch, rule="ddp.buckets", edit={"ddp.bucket_cap_mb": 50}, prediction=Prediction(0.009, 0.008, 0.0095, 0.01, 0.01)
    )
    assert cli.main(["verify", "run", "--rule", "ddp.buckets", "--pairs", "7", "--json", *command()]) == 0
    assert json.loads(capsys.readouterr().out)["prediction_held"] is False


@pytest.mark.parametrize(("saves", "held"), [(True, True), (False, None)])
def test_an_edit_of_one_s_own_is_held_against_the_model_too(saves, held, home, faster, monkeypatch, capsys):
    """The model of the run predicts the edit; where it withholds that, nothing was predicted."""
    faster(0.9)
    asked = []

    def what_if(run, edits):
        asked.append(list(edits))
        known = Outcome(tuple(edits), "m", 10e6, 9e6, 8.5e6, 9.5e6, 0.01, None, ()) if saves else None
        return known or withheld(edits, ["the replay is off"])

    monkeypatch.setattr("dtprof.advise.predicted.what_if", what_if)
    cli.main(["verify", "run", "--set", "ddp.bucket_cap_mb=50", "--pairs", "7", "--json", *command()])
    row = json.loads(capsys.readouterr().out)
    assert asked == [[Edit("ddp.bucket_cap_mb", 50)]]
    assert row["prediction_held"] is held
    assert (row["predicted"] is not None) == saves


def test_intervals_are_in_order():
    import numpy as np

    saving = _saving(np.log(np.linspace(0.7, 0.9, 9)), 0.01, 2.0)
    assert saving.low < saving.seconds_per_step < saving.high and saving.share_low == pytest.approx(saving.low / 2)
    assert _saving(np.zeros(3), 0.01, 1.0) is None and _held({"low": 0.0, "high": 1.0}, None) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--set", "ddp.static_graph=true"], "no command"),
        (["run", *command()], "one of the arguments --rule --set is required"),
        (["run", "--rule", "x", "--set", "a=1", *command()], "not allowed with"),
        (["run", "--rule", "ddp.buckets", *command()], "the rule ddp.buckets found nothing in it"),
        (["run", "--set", "net.latency_scale=2", *command()], "cannot be applied to a running script"),
        (["run", "--set", "ddp.static_graph=true", "--pairs", "3", *command()], "cannot decide"),
        (["nowhere", "--set", "ddp.static_graph=true", *command()], "nowhere"),
    ],
)
def test_what_makes_no_sense_is_one_line(words, said, home, capsys):
    assert cli.main(["verify", *words]) == 3
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and said in err
    assert not (home / "run" / "verdicts.jsonl").exists()

"""dtprof tune: which edit is tried, and what is said; the pairs themselves are verify's."""

import argparse
import json

import pytest

from dtprof.cli import main
from dtprof.cli.tune import best, minutes, tell
from dtprof.cli.whatif import write
from tests.unit.model.test_ddp import RankWork, measured, np, work


@pytest.fixture
def slow_network(tmp_path):
    """A run whose default buckets leave much exposed."""
    ready = 20 + 5 * np.arange(1, 17)
    works = [work(*ready, copy=0.25, tail=8e6), work(*(ready + 1), copy=0.25, tail=8e6)]
    assert isinstance(works[0], RankWork)
    write(measured(works)[0], tmp_path / "run")
    return tmp_path / "run"


def test_the_edit_that_gains_most_is_tried(slow_network, capsys):
    finding = best(slow_network)
    assert finding.rule == "ddp.bucket_size"
    assert finding.edit["ddp.bucket_cap_mb"] < 25
    assert finding.prediction.low > 0
    tell(slow_network, finding, None, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["edit"] == finding.edit
    assert told["verdict"] is None


def test_nothing_to_try_is_said(tmp_path, capsys):
    tell(tmp_path, None, None, json=False)
    assert "NOTHING TO TRY" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "value"), [("90s", 1.5), ("10m", 10), ("1h", 60), ("0.5 m", 0.5)])
def test_lengths_of_time(text, value):
    assert minutes(text) == value


@pytest.mark.parametrize("text", ["10", "0m", "-1m", "soon", ""])
def test_other_words_are_none(text):
    with pytest.raises(argparse.ArgumentTypeError, match="length of time"):
        minutes(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune"], "write it after --"),
        (["tune", "--", "false"], "command failed"),
        (["tune", "--budget", "5", "--", "true"], "90s"),
    ],
)
def test_bad_use_is_one_line(words, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 3
    line = capsys.readouterr().err.strip()
    assert said in line
    assert "\n" not in line


class TestWhatIf:
    def test_predicts_and_writes_a_run(self, slow_network, tmp_path, capsys):
        assert (
            main(["whatif", str(slow_network), "--set", "ddp.bucket_cap_mb=4", "--out", str(tmp_path / "sim"), "--json"]) == 0
        )
        told = json.loads(capsys.readouterr().out)
        assert told["low_ns"] <= told["predicted_ns"] <= told["high_ns"] < told["measured_ns"]
        assert told["prediction"]["seconds_per_step"] == pytest.approx(told["saved_ns"] / 1e9, abs=1e-8)
        assert main(["report", str(tmp_path / "sim"), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        length = np.median([s["dur_ns"] for r in report["ranks"] for s in r["steps"]])
        assert length == pytest.approx(told["predicted_ns"], rel=0.01)
        assert report["quality"][0]["what"].startswith("a simulated run: ddp.bucket_cap_mb=4")

    def test_withheld_ends_with_2(self, slow_network, capsys):
        assert main(["whatif", str(slow_network), "--set", "moe.balance=even"]) == 2
        assert "WITHHELD" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ([], "no edit to predict"),
            (["--set", "ddp.bucket_cap=4"], "ddp.bucket_cap_mb"),
            (["--set", "ddp.bucket_cap_mb=4", "--set", "ddp.bucket_cap_mb_list=1,2"], "contradict"),
            (["--set", "ddp.bucket_cap_mb=4", "--calibration", "/nowhere"], "dtprof job collectives"),
            (["--set", "ddp.bucket_cap_mb=4", "--out", "/"], "not empty"),
        ],
    )
    def test_bad_use_is_one_line(self, slow_network, words, said, capsys):
        assert main(["whatif", str(slow_network), *words]) == 3
        line = capsys.readouterr().err.strip()
        assert said in line
        assert "\n" not in line

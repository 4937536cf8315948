"""The verb gate with real commands: exit codes, outputs, refusals."""

import json
import sys
from xml.etree import ElementTree

import pytest

from dtprof import cli

# writes the steps of a run as a session would, with lengths that are given and not measured
RECORDED = """
import json, os, sys
folder = os.path.join(json.loads(os.environ["DTPROF_LAUNCH"])["out"], "part00000")
os.makedirs(folder)
with open(os.path.join(folder, "steps.jsonl"), "w") as file:
    for k in range(8):
        length = int(float(sys.argv[1]) * 1e6) + 1000 * k
        file.write(json.dumps({"step": k, "host_dur": length, "kind": "train" if k else "warm-up"}) + "\\n")
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """``job(ms)``: a command whose steps took that long."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(RECORDED)
    return lambda ms: f"{sys.executable} -I -S job.py {ms}"


def test_a_slower_candidate_fails_everywhere(job, tmp_path, capsys):
    files = ["--junit", "out/gate.xml", "--markdown", "out/gate.md", "--github", "--out", "runs", "--no-cause"]
    code = cli.main(["gate", "--baseline-cmd", job(10), "--candidate-cmd", job(11), "--pairs", "7", *files, "--json"])
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert code == 1 and document["outcome"] == "fail" and document["headline"].startswith("FAIL: step ")
    assert document["estimate"] == pytest.approx(0.1, abs=0.001)
    assert (document["pairs_used"], document["pairs_repeated"], len(document["pairs"])) == (7, 6, 13)
    assert document["pairs"][0]["steps"] == 5
    suite = ElementTree.parse("out/gate.xml").getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "2", "0")
    assert "### FAIL: dtprof gate" in (tmp_path / "out/gate.md").read_text()
    assert "::error title=dtprof gate::FAIL" in err
    assert sorted(p.name for p in (tmp_path / "runs").iterdir())[:2] == ["000a", "000b"]


def test_a_cause_that_cannot_be_told_is_said(job, capsys):
    code = cli.main(["gate", "--baseline-cmd", job(10), "--candidate-cmd", job(11), "--pairs", "7", "--no-confirm"])
    # these commands record no trace
    assert code == 1 and "the cause is not known" in " ".join(capsys.readouterr().out.split())


def test_the_same_command_passes(job, capsys):
    code = cli.main(["gate", "--baseline-cmd", job(10), "--candidate-cmd", job(10), "--pairs", "7"])
    assert code == 0 and capsys.readouterr().out.startswith("PASS: step 10.0 ms to 10.0 ms")


def test_aa_measures_the_machine(job, capsys):
    code = cli.main(["gate", "--aa", "--pairs", "7", "--json", "--baseline-cmd", job(10)])
    document = json.loads(capsys.readouterr().out)
    assert code == 0 and document["aa"] and set(document["detectable_with"]) == {"10", "20", "40"}
    assert document["headline"].startswith("PASS: the command does not differ from itself; noise of a pair 0%")


def test_a_failing_command_ends_with_3_and_its_last_lines(capsys):
    code = cli.main(["gate", "--baseline-cmd", "true", "--candidate-cmd", "echo out of memory; exit 9", "--pairs", "7"])
    out, err = capsys.readouterr()
    assert code == 3 and out == ""
    assert "  out of memory" in err and "the candidate command ended with exit code 9" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline-cmd", "true"], "no candidate"),
        (["--candidate-cmd", "true"], "no baseline command"),
        (["--baseline-cmd", "true", "--candidate-cmd", " "], "--candidate-cmd is empty"),
        (["--baseline-cmd", "true", "--candidate-cmd", "true", "--aa"], "several candidates"),
        (["--aa", "--baseline-cmd", "true", "--", "true"], "both --baseline-cmd and a command"),
        (["--aa", "--pairs", "5", "--", "true"], "5 pairs cannot decide at 1.0%"),
        (["--aa", "--pairs", "0", "--", "true"], "--pairs 0 is too small"),
        (["--aa", "--pairs", "9", "--minutes", "1", "--", "true"], "both given"),
        (["--aa", "--minutes", "-1", "--", "true"], "no length of time"),
        (["--aa", "--margin", "x", "--", "true"], "'x' is no share"),
        (["--aa", "--alpha", "60%", "--", "true"], "'60%' is no level"),
        (["--aa", "--detect", "1%", "--", "true"], "is within the margin"),
        (["--set", "ddp.bucket", "--", "true"], "no key"),
        (["--set", "net.latency_scale=2", "--", "true"], "cannot be applied to a running script"),
    ],
)
def test_what_makes_no_sense_is_one_line(words, said, capsys):
    assert cli.main(["gate", *words]) == 3
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err


def test_a_folder_with_something_in_it_is_refused(tmp_path, capsys):
    (tmp_path / "old").write_text("")
    assert cli.main(["gate", "--aa", "--out", str(tmp_path), "--", "true"]) == 3
    assert "not empty" in capsys.readouterr().err

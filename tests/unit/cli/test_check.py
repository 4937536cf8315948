"""The verbs check, baseline and history on real files: traces, recorded runs, damaged and foreign baselines."""

import json
from xml.etree import ElementTree

import pytest

from dtprof import cli
from dtprof.check import outputs
from dtprof.check.result import Result, Row
from dtprof.cli.check import lines
from tests.unit.analyse.test_diff import run as traces


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verb(capsys, *words):
    code = cli.main(list(map(str, words)))
    out, err = capsys.readouterr()
    return code, out, err


def checked(capsys, *words):
    code, out, _ = verb(capsys, "check", *words, "--json")
    return code, json.loads(out)


def record(capsys, *folders, file="b.json", more=()):
    code, _, err = verb(capsys, "baseline", "record", *folders, "-o", file, *more)
    assert code == 0 and f"wrote {file}" in err


def test_the_same_run_passes_and_a_slower_one_fails_with_its_cause(home, capsys):
    a, b = traces(home, "a", {}, {}), traces(home, "b", {}, {}, comm=60)
    record(capsys, a)
    code, document = checked(capsys, a, "--baseline", "b.json")
    assert (code, document["outcome"]) == (0, "pass") and document["headline"].startswith("PASS: step 40")
    code, document = checked(capsys, b, "--baseline", "b.json", "--junit", "j.xml", "--markdown", "m.md")
    assert code == 1
    worst = {m["name"] for m in document["metrics"] if m["outcome"] == "fail"}
    assert {"step_time_ns", "share.comm_exposed"} <= worst and "comm.all_reduce.bytes" not in worst
    suite = ElementTree.parse("j.xml").getroot().find("testsuite")
    assert int(suite.get("failures")) == len(worst) + 1 and int(suite.get("tests")) == len(document["metrics"]) + 1
    assert "| FAIL | `step_time_ns` |" in (home / "m.md").read_text()


def test_the_first_line_names_the_category(home, capsys):
    a, b = traces(home, "a", {}, {}, compute=100), traces(home, "b", {}, {}, compute=190)
    record(capsys, a)
    code, document = checked(capsys, b, "--baseline", "b.json")
    assert code == 1 and "compute takes 90" in document["headline"]


def test_baseline_files_are_made_for_review(home, capsys):
    a = traces(home, "a", {}, {})
    record(capsys, a, more=["--commit", "abc"])
    text = (home / "b.json").read_text()
    lines = [line for line in text.splitlines() if '"kind": "exact"' in line]
    assert lines and all(line.count('"values"') == 1 for line in lines)
    record(capsys, traces(home, "b", {}, {}), more=["--add", "--commit", "abd"])
    again = json.loads((home / "b.json").read_text())
    (baseline,) = again["baselines"]
    assert [r["commit"] for r in baseline["runs"]] == ["abc", "abd"]
    assert all(len(m["values"]) == 2 for m in baseline["metrics"].values())
    record(capsys, a, more=["--commit", "abe"])
    assert [r["commit"] for r in json.loads((home / "b.json").read_text())["baselines"][0]["runs"]] == ["abe"]


def test_a_changed_number_of_collectives_is_accepted_on_request(home, capsys):
    a, b = traces(home, "a", {}, {}), traces(home, "b", {}, {}, moe=12)
    record(capsys, a)
    assert checked(capsys, b, "--baseline", "b.json")[0] == 1
    assert verb(capsys, "baseline", "accept", b, "-o", "b.json")[0] == 0
    assert checked(capsys, b, "--baseline", "b.json")[0] == 0
    code, out, _ = verb(capsys, "baseline", "show", "-o", "b.json")
    assert code == 0 and "device.launches" in out


def test_another_machine_is_one_line_and_gets_its_own_baseline(home, capsys):
    a, b = traces(home, "a", {}, {}), traces(home, "b", {}, {}, {})
    record(capsys, a)
    code, out, _ = verb(capsys, "check", b, "--baseline", "b.json")
    assert code == 2 and " ".join(out.split()).startswith(
        "INCONCLUSIVE: another number of ranks: 2 in the baseline, 3 in the run"
    )
    code, _, err = verb(capsys, "baseline", "accept", b, "-o", "b.json")
    assert code == 3 and "holds no baseline of" in err
    record(capsys, b)
    assert checked(capsys, b, "--baseline", "b.json")[0] == 0 and checked(capsys, a, "--baseline", "b.json")[0] == 0


def test_a_missing_metric(home, capsys):
    a, b = traces(home, "a", {}, {}), traces(home, "b", {}, {})
    record(capsys, a)
    data = json.loads((home / "b.json").read_text())
    data["baselines"][0]["metrics"]["memory.allocated.peak_bytes"] = {"kind": "bytes", "values": [5]}
    (home / "b.json").write_text(json.dumps(data))
    code, document = checked(capsys, b, "--baseline", "b.json")
    assert code == 2 and document["headline"].startswith("INCONCLUSIVE: memory.allocated.peak_bytes missing")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: "not json", "b.json: not JSON"),
        (lambda d: json.dumps(d)[:200], "b.json: not JSON"),
        (lambda d: "[1, 2]", "not a baseline of dtprof"),
        (lambda d: '{"benchmarks": []}', "not a baseline of dtprof"),
        (lambda d: json.dumps({**d, "schema": 99}), "schema 99"),
        (lambda d: json.dumps({**d, "baselines": [{"runs": 3}]}), "b.json: damaged"),
        (lambda d: json.dumps(d).replace("[4", '["x", 4', 1), "b.json: damaged"),
        (lambda d: json.dumps(d).replace('"values": [', '"values": [1, ', 1), "values for 1 runs"),
        (lambda d: json.dumps({**d, "baselines": []}), "the baseline file is empty"),
    ],
)
def test_a_damaged_or_foreign_baseline_is_one_line(change, said, home, capsys):
    a = traces(home, "a", {}, {})
    record(capsys, a)
    (home / "b.json").write_text(change(json.loads((home / "b.json").read_text())))
    code, out, err = verb(capsys, "check", a, "--baseline", "b.json")
    assert code in (2, 3) and said in " ".join((out + err).split())
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "nowhere", "--baseline", "b.json"], "nowhere"),
        (["check", "a"], "--baseline"),
        (["check", "a", "--baseline", "absent.json"], "absent.json: cannot be read"),
        (["check", "a", "--baseline", "b.json", "--junit", "/dev/null/x"], "cannot be written"),
        (["baseline", "record"], "no RUN"),
        (["baseline", "accept", "a", "-o", "new.json"], "there is no baseline to change"),
        (["baseline", "show", "a"], "takes no RUN"),
        (["baseline", "forget"], "invalid choice"),
        (["baseline", "record", "a", "-o", "/dev/null/x"], "cannot be"),
        (["history", "nowhere"], "nowhere: no such file"),
        (["history", "empty"], "nothing to look at"),
        (["history", "bad"], "not a stored result"),
        (["history", "b.json", "--metric", "x"], "no result has the metric 'x'"),
    ],
)
def test_what_makes_no_sense_is_one_line(words, said, home, capsys):
    record(capsys, traces(home, "a", {}, {}))
    (home / "empty").mkdir()
    (home / "bad").mkdir()
    (home / "bad" / "x.json").write_text("{")
    code, out, err = verb(capsys, *words)
    assert code == 3 and out == "" and len(err.splitlines()) == 1 and said in err


def series(folder, values):
    """One document of check --json per value, a day apart."""
    folder.mkdir()
    for i, value in enumerate(values):
        metric = {"name": "step_time_ns", "kind": "time", "value": value, "outcome": "pass"}
        document = {"schema": 1, "outcome": "pass", "recorded": 86400 * i, "metrics": [metric]}
        (folder / f"night{len(values) - i:03d}.json").write_text(json.dumps(document))


def test_history_finds_the_night_and_draws_it(home, capsys):
    values = [100e6 + 1e6 * (i % 3) for i in range(12)] + [108e6 + 1e6 * (i % 3) for i in range(12)]
    series(home / "h", values)
    code, out, _ = verb(capsys, "history", "h", "--svg", "h.svg", "--html", "h.html")
    first = out.splitlines()[0]
    assert code == 0 and first.startswith("step_time_ns: 101 ms to 109 ms (+7.9%) since night012 (12 results)")
    assert "|" in out and "o" in out
    root = ElementTree.parse("h.svg").getroot()
    assert len(root.findall(".//{*}rect")) == 24
    assert "night012" in (home / "h.html").read_text()
    code, out, _ = verb(capsys, "history", "h", "--json")
    (metric,) = json.loads(out)["metrics"]
    assert [c["at"] for c in metric["changes"]] == [12] and metric["changes"][0]["p"] <= 0.05


def test_history_of_few_or_steady_results(home, capsys):
    series(home / "few", [1e6] * 7)
    assert verb(capsys, "history", "few")[0] == 2
    series(home / "steady", [1e6 + 1e3 * ((7 * i) % 5) for i in range(20)])
    code, out, _ = verb(capsys, "history", "steady", "--metric", "all")
    assert code == 0 and "no change in 20 results" in out


def test_outputs_hold_whatever_a_name_holds():
    evil = "a|b\n<c> & \x00 % : , ]]>"
    result = Result("t", "fail", evil, (Row(evil, "fail", evil), Row("fine", "pass", "ok")), (evil,))
    assert ElementTree.fromstring(outputs.junit(result).encode()).find("testsuite").get("tests") == "3"
    lines = outputs.github(result)
    assert all("\n" not in line for line in lines) and len(lines) == 2
    assert "%0A" in lines[0] and "%25" in lines[0] and ":" not in lines[1].split("title=")[1].split("::")[0]
    table = [line for line in outputs.markdown(result).splitlines() if line.startswith("| FAIL")]
    assert len(table) == 1 and "\\|" in table[0]


def test_annotations_are_no_more_than_are_shown():
    rows = tuple(Row(f"m{i}", "fail", "x") for i in range(50))
    assert len(outputs.github(Result("t", "fail", "FAIL", rows))) == outputs.MOST_ANNOTATIONS


def test_the_summary_of_a_github_step_is_appended(home, capsys, monkeypatch):
    a = traces(home, "a", {}, {})
    record(capsys, a)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(home / "summary.md"))
    (home / "summary.md").write_text("before\n")
    code, _, err = verb(capsys, "check", a, "--baseline", "b.json", "--github")
    assert code == 0 and "::notice title=dtprof check" in err
    assert (home / "summary.md").read_text().startswith("before\n### PASS")


def test_only_what_may_be_worse_has_a_line(capsys):
    rows = (
        Row("slow", "fail", "1 to 2"),
        Row("doubtful", "inconclusive", "1 to 3", {"suspect": True}),
        Row("open", "inconclusive", "1 to 1", {"suspect": False}),
        Row("gone", "inconclusive", "missing", {"missing": True}),
        *(Row(f"fine{n}", "pass", "1 to 1") for n in range(4)),
    )
    result = Result("t", "fail", "FAIL: slow 1 to 2", rows)
    text = list(lines(result, 80))
    assert text[:4] == ["FAIL: slow 1 to 2", "", "FAIL slow: 1 to 2", "INCONCLUSIVE doubtful: 1 to 3"]
    assert "1 not resolved, none looks worse than its margin: open" in text
    assert "1 in the baseline and not in this run: gone" in text
    assert "4 passed: fine0, fine1, fine2, fine3" in text
    suite = ElementTree.fromstring(outputs.junit(result)).find("testsuite")
    assert [suite.get(n) for n in ("tests", "failures", "errors", "skipped")] == ["9", "2", "2", "1"]
    told = outputs.github(result)
    assert len(told) == 4 and not any("open" in line for line in told)


def test_a_run_counts_once_in_a_baseline(home, capsys):
    a = traces(home, "a", {}, {})
    code, _, err = verb(capsys, "baseline", "record", a, a, "-o", "b.json")
    assert code == 3 and "given twice" in err
    record(capsys, a)
    code, _, err = verb(capsys, "baseline", "record", a, "--add", "-o", "b.json")
    assert code == 3 and "is in the baseline already" in err


def test_a_run_in_which_ranks_are_missing_is_not_compared(home, capsys):
    a, b = traces(home, "a", {}, {}), traces(home, "b", {}, {})
    record(capsys, a)
    sorted(p for p in b.iterdir() if p.is_file())[-1].unlink()
    code, document = checked(capsys, b, "--baseline", "b.json")
    assert code == 2 and "ranks are missing: all are in the baseline, 1 of 2 in the run" in document["headline"]

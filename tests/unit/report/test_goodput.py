"""Goodput in the report: the line, the document, and neither where it is not known."""

import json

import dtprof
from dtprof.cli import main
from tests.unit.advise.recorded import write


def test_the_line_and_the_document_say_the_same(tmp_path, capsys):
    write(tmp_path, start_up_ms=1000.0, kind=lambda r, s: "eval" if s == 10 else None)
    assert main(["report", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.replace("\xa0", " ").split())
    assert "GOODPUT 78% of 5.00 s were training; starting 20%, evaluating 2.0%" in text
    assert main(["report", "--json", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)["goodput"]
    assert found["share"] == 0.78
    assert found["ranks"][1]["ns"]["start_up"] == 1_000_000_000
    for rank in found["ranks"]:
        assert sum(rank["ns"].values()) == rank["wall_ns"]


def test_a_trace_has_none(truth, capsys):
    path = str(truth / "traces/kineto/h100_qwen_0.5b.json.gz")
    assert main(["report", path]) == 0
    assert "GOODPUT" not in capsys.readouterr().out
    assert main(["report", "--json", path]) == 0
    assert json.loads(capsys.readouterr().out)["goodput"] is None
    assert dtprof.open_run(path).format == "kineto"

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from dtprof import cli
from dtprof.cli import report
from tests.unit.report import build


@pytest.fixture
def facts(monkeypatch):
    """The verb reports these hand-made facts, whatever the path."""
    made = build.eight_ranks()
    monkeypatch.setattr(report, "read", lambda path: made)
    return made


def run(capsys, *words):
    code = cli.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def trace(folder, name="rank0.json"):
    """A small trace: two steps, three kernels."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{k}", "pid": 1, "tid": 1, "ts": 100 * k, "dur": 90}
        for k in (1, 2)
    ]
    for i, at in enumerate((110, 150, 210)):
        launch = {"correlation": i, "External id": i}
        events.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": 1,
                "tid": 1,
                "ts": at,
                "dur": 2,
                "args": launch,
            }
        )
        device = {**launch, "device": 0, "stream": 7}
        events.append(
            {"ph": "X", "cat": "kernel", "name": f"gemm_{i}", "pid": 0, "tid": 7, "ts": at + 5, "dur": 20, "args": device}
        )
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}))
    return path


def test_a_trace_from_file_to_document(tmp_path, capsys):
    code, out, err = run(capsys, "report", str(trace(tmp_path)), "--json")
    assert (code, err) == (0, "")
    doc = json.loads(out)
    assert (doc["schema"], doc["source"]["format"], doc["source"]["steps"]) == (1, "kineto", [1, 2])
    assert doc["ranks"][0]["device"]["compute_ns"] == 60_000
    first = doc["ranks"][0]["steps"][0]
    assert (first["complete"], first["dur_ns"]) == (True, 100_000)
    assert sum(first["accounting"].values()) == 100_000


def test_a_trace_as_text_and_page(tmp_path, capsys):
    page = tmp_path / "new" / "folder" / "report.html"
    code, out, err = run(capsys, "report", str(trace(tmp_path)), "--html", str(page))
    assert code == 0
    assert "VERDICT" in out
    assert err == f"dtprof: wrote {page}\n"
    assert page.read_text().startswith("<!doctype html>")


def test_nothing_is_written_beside_a_foreign_trace(tmp_path, capsys):
    path = trace(tmp_path)
    run(capsys, "report", str(path), "--json")
    assert list(tmp_path.iterdir()) == [path]


def test_with_json_stdout_holds_one_document(facts, capsys, tmp_path):
    code, out, err = run(capsys, "report", "x", "--json", "--html", str(tmp_path / "r.html"))
    assert code == 0
    assert json.loads(out)["source"]["world_size"] == 8
    assert "wrote" in err


@pytest.mark.parametrize(("level", "worst", "code"), [
    # fail on, worst finding, exit code
    ("high", "high", 1), ("high", "medium", 0), ("medium", "medium", 1),
    ("medium", "low", 0), ("low", "low", 1), ("low", None, 0),
])  # fmt: skip
def test_fail_on(monkeypatch, capsys, level, worst, code):
    found = () if worst is None else (replace(build.LATE, severity=worst),)
    made = build.eight_ranks(findings=found)
    monkeypatch.setattr(report, "read", lambda path: made)
    assert run(capsys, "report", "x", "--fail-on", level)[0] == code
    assert run(capsys, "report", "x", "--json", "--fail-on", level)[0] == code
    assert run(capsys, "report", "x")[0] == 0


@pytest.mark.parametrize("make", [
    lambda folder: folder / "absent",
    lambda folder: folder,
    lambda folder: write(folder / "paper.pdf", b"%PDF-1.7 nonsense"),
    lambda folder: write(folder / "cut.json.gz", b"\x1f\x8b\x08\x00"),
    lambda folder: write(folder / "other.json", b'{"name": "package", "version": 3}').parent,
])  # fmt: skip
def test_bad_input_is_one_line_that_names_the_path(tmp_path, capsys, make):
    path = make(tmp_path)
    code, out, err = run(capsys, "report", str(path))
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert str(path) in err
    assert ";" in err


def write(path, data):
    path.write_bytes(data)
    return path


def test_a_page_that_cannot_be_written(facts, capsys, tmp_path):
    code, out, err = run(capsys, "report", "x", "--html", str(tmp_path))
    assert (code, out) == (3, "")
    assert str(tmp_path) in err
    assert "give another place to --html" in err


def test_print_report_is_what_the_verb_does(facts, capsys):
    assert report.print_report("x") == 0
    text = capsys.readouterr().out
    assert run(capsys, "report", "x")[1] == text
    assert report.print_report("x", json=True) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_fail_on_survives_a_reader_that_leaves_early(tmp_path):
    code = (
        "import sys; from dtprof.cli import main, report; from tests.unit.report import build;"
        "made = build.eight_ranks(); report.read = lambda path: made;"
        "sys.exit(main(['report', 'x', '--fail-on', 'high']))"
    )
    read, wrote = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=wrote, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(wrote)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_bar_where_stderr_is_no_terminal(capsys):
    with report.progress_bar() as progress:
        assert progress is None


def test_a_bar_on_a_terminal_goes_to_stderr(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with report.progress_bar() as progress:
        progress("rank0.json", 1, 2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("make", list(build.ALL.values()))
def test_every_printed_command_names_a_verb_that_exists(make):
    import re

    from dtprof.report.html import page
    from dtprof.report.text import render

    made = make()
    words = "\n".join(line.plain for line in render(made, 120, False)) + re.sub(r"<[^>]*>", " ", page(made))
    verbs = set(re.findall(r"\bdtprof ([a-z]+) [-/\w]", words)) - {"report"}
    assert verbs <= {"job", "plugins"}

"""A result for machines and people in CI: JUnit XML, a Markdown summary, GitHub's annotations."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from dtprof.check.result import Result, Row
from dtprof.errors import InputError
from dtprof.numbers import NBSP

MOST_ANNOTATIONS = 10  # GitHub shows no more per step and kind
_SIGN = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE"}
_TAG = {"pass": "", "fail": "failure", "inconclusive": "error"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(text: str) -> str:
    """Text without non-breaking spaces and without what XML cannot hold."""
    return _NOT_XML.sub("?", text.replace(NBSP, " "))


def junit(result: Result) -> str:
    """JUnit XML: one case for the whole and one per metric; inconclusive is an error, since it is no pass.

    A metric that is not resolved and does not look worse than its margin is a skipped case.
    """
    cases = [Row("outcome", result.outcome, result.headline), *result.rows]
    tags = ["skipped" if c.harmless else _TAG[c.outcome] for c in cases]
    suite = ElementTree.Element(
        "testsuite", name=plain(result.title), tests=str(len(cases)), failures=str(tags.count("failure")),
        errors=str(tags.count("error")), skipped=str(tags.count("skipped")),
    )  # fmt: skip
    for row, tag in zip(cases, tags, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname=plain(result.title), name=plain(row.name))
        if tag:
            kind = "regression" if row.outcome == "fail" else "inconclusive"
            ElementTree.SubElement(case, tag, message=plain(row.text), type=kind).text = plain(row.text)
    ElementTree.SubElement(suite, "system-out").text = plain("\n".join([result.headline, *result.notes]))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def markdown(result: Result) -> str:
    """A summary: the first line, the metrics that did not pass, the rest folded away."""
    lines = [f"### {_SIGN[result.outcome]}: {_cell(result.title)}", "", _cell(result.headline), ""]
    worst = [r for r in result.rows if r.outcome != "pass"]
    rest = [r for r in result.rows if r.outcome == "pass"]
    if worst:
        lines += _table(worst)
    if rest:
        lines += [f"<details><summary>{len(rest)} passed</summary>", "", *_table(rest), "</details>", ""]
    lines += [f"- {_cell(note)}" for note in result.notes]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: list[Row]) -> list[str]:
    body = [f"| {_SIGN[r.outcome]} | `{_cell(r.name)}` | {_cell(r.text)} |" for r in rows]
    return ["| outcome | metric | |", "|---|---|---|", *body, ""]


def _cell(text: str) -> str:
    return plain(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def github(result: Result) -> list[str]:
    """GitHub workflow commands: ``::error`` for what failed, ``::warning`` for what may have."""
    kind = {"fail": "error", "inconclusive": "warning", "pass": "notice"}
    said = [f"::{kind[result.outcome]} title={_property(result.title)}::{_message(result.headline)}"]
    rows = [r for r in result.rows if not r.harmless] if len(result.rows) > 1 else []
    shown = [r for r in rows if r.outcome == "fail"] + [r for r in rows if r.outcome == "inconclusive"]
    said += [f"::{kind[r.outcome]} title={_property(r.name)}::{_message(r.text)}" for r in shown[: MOST_ANNOTATIONS - 1]]
    return said


def _message(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def write(path: str, text: str, option: str) -> None:
    """Write an output file, its folder made; InputError where it cannot be written."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})", f"give another place to {option}") from error

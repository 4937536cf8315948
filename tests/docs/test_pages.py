"""The pages that can be stale are not."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from dtprof.advise.rules import RULES
from dtprof.cli.parser import BUILT_IN
from dtprof.plugins import announced

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]


def test_tables_page_is_what_the_schema_says():
    made = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["page"]()
    assert (ROOT / "docs" / "tables.md").read_text() == made, "stale: run .venv/bin/python docs/make_tables.py"


def test_the_layers_on_the_architecture_page_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    checked = [sorted(re.findall(r"\w+", layer)) for layer in contracts[0]["layers"]]
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Who may import whom")[2]
    shown = section.split("```")[1].strip().splitlines()
    assert [sorted(line.split()) for line in shown] == checked


def test_every_rule_has_a_section_and_every_section_a_rule():
    sections = re.findall(r"^## (\S+)$", (ROOT / "docs" / "rules.md").read_text(), flags=re.MULTILINE)
    assert sorted(sections) == sorted(rule.id for rule in RULES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" not in target, "the pages hold no addresses"
        assert (page.parent / target).exists(), target


def code_of(page):
    """What a page shows as code, line by line."""
    text = page.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in fenced for line in block.splitlines()] + re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_verbs_and_make_targets_exist(page):
    verbs = {*BUILT_IN, *(entry.name for entry in announced("commands")), "slowest"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for line in code_of(page):
        said = re.match(r"(?:\$ )?(?:\.venv/bin/)?(dtprof|make) ([a-z]\S*)", line)
        if said:
            assert said[2] in (verbs if said[1] == "dtprof" else targets), line

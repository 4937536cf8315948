"""The pages that can be stale are not."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tables_page_is_what_the_schema_says():
    made = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))["page"]()
    assert (ROOT / "docs" / "tables.md").read_text() == made, "stale: run .venv/bin/python docs/make_tables.py"

"""The pages without a browser: Streamlit's own test runner over runs on disk."""

import re
from html import unescape
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from dtprof.ingest.store import all_tables
from dtprof.run import write_manifest, write_tables
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

APP = Path(__file__).parents[3] / "dashboards" / "dtprof_dashboards" / "serve" / "app.py"


def write_run(run, folder):
    """A run of these tables on disk."""
    write_tables(folder / "tables", all_tables(run))
    write_manifest(folder / "manifest.json", run.manifest)
    return folder


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A folder with a run of every hard shape, by its name."""
    root = tmp_path_factory.mktemp("shapes")
    for name, make in SHAPES.items():
        write_run(matched(make()), root / name)
    return root


class Drawn:
    """What one run of the program drew."""

    def __init__(self, tester):
        self.tester = tester
        self.markup = "\n".join(e.proto.bytes.decode() for e in tester.get("bidi_component") if e.proto.bytes)
        self.text = " ".join(unescape(re.sub(r"<[^>]+>", " ", self.markup)).replace("\u00a0", " ").split())
        self.heads = re.findall(r"<h2>(.*?)</h2>", self.markup)
        self.query = {key: value[0] if isinstance(value, list) else value for key, value in tester.query_params.items()}

    def box(self, label):
        """The select box of that label."""
        return next(s for s in self.tester.selectbox if s.label == label)


@pytest.fixture
def draw(monkeypatch):
    """``draw(root, page=…, run=…)``: a new session at that address."""
    from streamlit.testing.v1 import AppTest

    def start(root, **query):
        monkeypatch.setenv("DTPROF_DASHBOARD", str(root))
        tester = AppTest.from_file(str(APP), default_timeout=120)
        for key, value in query.items():
            tester.query_params[key] = value
        tester.run()
        assert not tester.exception, [f"{e.message}\n{''.join(e.stack_trace)}" for e in tester.exception]
        return Drawn(tester)

    return start

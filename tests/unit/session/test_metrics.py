"""Numbers that the job records: kept with their step and place, bounded, and never in the loop's way."""

import logging
import math
import threading

import pytest

import dtprof
from dtprof.ingest import open_run
from dtprof.jsonl import read_lines
from dtprof.session import metrics
from dtprof.session.folder import describe


class OnDevice:
    """What a tensor on a device looks like; it must not be read."""

    class device:
        type = "cuda"

    def __float__(self):
        pytest.fail("the value was read")


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("DTPROF_RUN_ID", "x")
    return lambda: dtprof.profile(tmp_path, collectors=[], capture=None)


def rows(path):
    table = open_run(path).table("metrics", 0)
    mine = table.take(~table.is_("metric", "own_time"))
    return [mine.row(i) for i in range(len(mine))]


def test_a_metric_has_its_step_and_place(session, tmp_path):
    dtprof.metric("before", 1)
    with session() as prof:
        dtprof.metric("moe_tokens", 812, unit="tokens", layer="blocks.3", expert=5)
        prof.step()
        prof.step()
        dtprof.metric("loss_scale", 2.0**16)
        thread = threading.Thread(target=dtprof.metric, args=("staleness", math.inf), kwargs={"bucket": 1})
        thread.start()
        thread.join()
        prof.step()
        dtprof.metric("after the last step", 1)
    dtprof.metric("after", 1)
    first, second, third = rows(tmp_path)
    assert (first["step"], first["metric"], first["value"], first["unit"]) == (0, "moe_tokens", 812, "tokens")
    assert (first["layer"], first["expert"]) == ("blocks.3", 5)
    assert (second["step"], second["metric"], second["value"]) == (2, "loss_scale", 65536)
    assert (third["metric"], third["bucket"]) == ("staleness", 1)
    assert third["value"] is None
    assert (first["bucket"], second["expert"], second["layer"]) == (None, None, None)


def test_what_is_no_number_switches_that_name_off_and_is_noted(session, tmp_path, caplog):
    with caplog.at_level(logging.WARNING), session() as prof:
        dtprof.metric("odd", "many")
        dtprof.metric("odd", 1)
        dtprof.metric("expert", 1, expert="first")
        dtprof.metric("good", 1)
        dtprof.metric("far", OnDevice())
        prof.step()
    assert [row["metric"] for row in rows(tmp_path)] == ["good"]
    extra = describe(tmp_path / "part00000").extra
    assert [f["name"] for f in extra["failures"]] == ["metric odd", "metric expert"]
    assert "metric far lies on a device" in extra["notes"][0]
    assert len(caplog.records) == 2


def test_a_step_holds_only_so_many(session, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_PER_STEP", 3)
    with session() as prof:
        for step in range(2):
            for number in range(5 - step * 4):
                dtprof.metric("n", number)
            prof.step()
    assert [(row["step"], row["value"]) for row in rows(tmp_path)] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert describe(tmp_path / "part00000").extra["notes"] == ["more than 3 metrics in a step; the rest is left out"]


def test_torn_and_odd_lines_are_said(session, tmp_path):
    with session() as prof:
        dtprof.metric("n", 1)
        prof.step()
    path = tmp_path / "part00000" / "metrics.jsonl"
    assert read_lines(path)[0] == [{"step": 0, "metrics": [["n", 1.0, "", None, None, None]]}]
    with path.open("a") as file:
        file.write('{"step": 1, "metrics": [["n", "x"]]}\n{"step": 2, "metrics": [["m", 2]]}\n{"step": 3, "metr')
    assert [(row["step"], row["metric"]) for row in rows(tmp_path)] == [(0, "n"), (2, "m")]
    quality = open_run(tmp_path).table("quality", 0)
    found = [(q["source"], q["what"], q["count"]) for q in map(quality.row, range(len(quality)))]
    assert ("metrics.jsonl", "torn lines", 2) in found

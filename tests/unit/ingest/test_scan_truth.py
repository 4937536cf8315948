"""Both scanners on every real trace: against plain ``json``, and against each other."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from dtprof.ingest.kineto.raw import INT_ARGS
from dtprof.ingest.kineto.scan import scan_file, sniff
from tests.unit.ingest.scan_lab import ENGINES, expected, records, scan, whole


@pytest.fixture(scope="module")
def files(truth):
    found = sorted((truth / "traces" / "kineto").rglob("*.json.gz"))
    assert len(found) > 20
    return found


def event_texts(text):
    """Each event of a sound file as it stands there."""
    decoded = text.decode()
    at = decoded.index("[", decoded.index('"traceEvents"')) + 1
    decoder = json.JSONDecoder()
    while True:
        at += len(decoded[at : at + 4096]) - len(decoded[at : at + 4096].lstrip(", \r\n\t"))
        if decoded[at] == "]":
            return
        _, stop = decoder.raw_decode(decoded, at)
        yield decoded[at:stop].encode()
        at = stop


def test_every_event_of_every_real_trace_is_as_json_reads_it(files):
    order = {"X": 0, "s": 1, "t": 1, "f": 1, "i": 2, "M": 3}
    for file in files:
        text = gzip.decompress(file.read_bytes())
        found = sorted((r for r in map(expected, event_texts(text)) if r), key=lambda r: order[r[0]])
        header = json.loads(text)
        count = len(header.pop("traceEvents"))
        for engine in ENGINES:
            trace = scan_file(file, engine=engine)
            assert records(trace) == found, (file.name, engine)
            assert trace.events_total == count
            assert trace.header == header
            assert trace.damage == []


@pytest.mark.skipif(len(ENGINES) < 2, reason="the C scanner was not built")
def test_both_scanners_give_the_same_columns(files):
    for file in files:
        c, python = (scan_file(file, engine=engine) for engine in ("c", "python"))
        assert whole(c) == whole(python), file.name
        for key in INT_ARGS:
            if key in c.args:
                assert c.args[key].values.dtype == python.args[key].values.dtype == np.int64
                assert c.args[key].rows.dtype == python.args[key].rows.dtype == np.int32
        for column in ("ts", "dur", "track", "correlation", "external", "flow_phase", "flow_id", "flow_ts", "flow_track"):
            assert getattr(c, column).dtype == getattr(python, column).dtype


def test_every_real_trace_is_recognised(files):
    assert all(sniff(file) for file in files)


def test_truth_files_that_are_no_traces_are_not(truth):
    others = [p for p in (truth / "traces").iterdir() if p.suffix == ".json"]
    assert others
    assert not any(sniff(p) for p in others)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.85])
def test_two_real_ranks_written_over_each_other(truth, engine, share):
    first, second = (
        gzip.decompress(next((truth / "traces" / "kineto" / "dlrm_8rank_v100").glob(f"worker{rank}_*")).read_bytes())
        for rank in (0, 1)
    )
    cut = int(share * len(first))
    trace, alone = scan(first[:cut] + second[int(share * len(second)) :], engine), scan(first[:cut], engine)
    count = len(alone.ts)
    assert count <= len(trace.ts) <= count + 1
    assert trace.ts[:count].tolist() == alone.ts.tolist()
    assert {trace.tracks[t][0] for t in trace.track.tolist()} <= {"59811", "0"}
    assert any("two writers" in d.what for d in trace.damage)

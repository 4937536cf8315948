"""Chrome JSON: form, names, arrows between ranks; HTA opens it and counts the same."""

import gzip
import json
from collections import Counter

import pytest

import dtprof
from dtprof.export.chrome import ChromeExporter
from tests.unit.export.samples import NAMES, hostile, unmarked


def load(path):
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture
def files(tmp_path):
    return [load(w.path) for w in ChromeExporter().write(hostile(), tmp_path)]


def test_names_are_what_they_were(files):
    first = files[0]["traceEvents"]
    kernels = [e["name"] for e in first if e.get("cat") == "kernel"]
    assert kernels[: len(NAMES)] == list(NAMES)
    assert files[0]["distributedInfo"]["rank"] == 0 and files[1]["distributedInfo"]["rank"] == 1


def test_every_event_of_the_run_is_there(files):
    run = hostile()
    for part, file in zip(run.parts, files[:2], strict=True):
        spans = len(run.table("events", part.ordinal)) + len(unmarked(run, part))
        assert sum(e["ph"] == "X" for e in file["traceEvents"]) == spans
    merged = files[2]["traceEvents"]
    spans = sum(len(run.table("events", p.ordinal)) + len(unmarked(run, p)) for p in run.parts)
    assert sum(e["ph"] == "X" for e in merged) == spans


def test_ranks_are_groups_of_their_own_in_the_merged_file(files):
    merged = files[2]["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in merged if e["name"] == "process_name"}
    assert sorted(names.values()) == ['rank 0: GPU 0 GPU "<b>"', "rank 0: host", 'rank 1: GPU 0 GPU "<b>"', "rank 1: host"]
    assert {e["pid"] for e in merged if e["ph"] == "X"} == set(names)


def test_arrows_join_the_ranks_of_an_operation_and_launches_their_kernels(files):
    arrows = [e for e in files[2]["traceEvents"] if e.get("cat") == "operation"]
    assert [e["ph"] for e in arrows] == ["s", "f"]
    assert arrows[0]["id"] == arrows[1]["id"]
    # clocks are aligned: rank 1 was told 400 us late, and starts 5 us before rank 0
    assert arrows[1]["ts"] - arrows[0]["ts"] == pytest.approx(5)
    launches = Counter(e["ph"] for e in files[0]["traceEvents"] if e.get("cat") == "ac2g")
    assert launches == {"s": len(NAMES) + 1, "f": len(NAMES) + 1}


def test_counters(files):
    counters = {e["name"]: e["args"]["value"] for e in files[0]["traceEvents"] if e["ph"] == "C"}
    assert counters == {"sm_clock of GPU 0 (MHz)": 1980.0, "memory allocated of GPU 0 (bytes)": 1 << 30}


def test_times_are_exact(files):
    run = hostile()
    events = run.table("events", 0)
    base = files[0]["baseTimeNanoseconds"]
    spans = [e for e in files[0]["traceEvents"] if e["ph"] == "X"]
    steps = unmarked(run, run.parts[0])
    times = [round(e["ts"] * 1000) + base for e in spans]
    assert times == events["ts"].tolist() + [ts for _, ts, _ in steps]
    assert [e["name"] for e in spans[len(events) :]] == [name for name, _, _ in steps]


def counts(hta):
    """Kernels, copies and memsets by rank and name, and the breakdown of every rank, as HTA has them."""
    names = hta.t.symbol_table.get_sym_table()
    found = {}
    for rank in hta.t.get_all_traces():
        frame = hta.t.get_trace(rank)
        device = frame.loc[(frame["stream"] >= 0) & (frame["index_correlation"] > 0), "name"]
        found[rank] = Counter(names[i] for i in device)
    return found, hta.get_temporal_breakdown(visualize=False).to_dict("records")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dlrm_8rank_v100", "v100_rank1of2_allreduce_alltoall.json.gz"])
@pytest.mark.filterwarnings("ignore")
def test_hta_opens_it_and_counts_the_same(truth, tmp_path, name):
    analysis = pytest.importorskip("hta.trace_analysis", reason="make setup could not install HTA")
    source = truth / "traces" / "kineto" / name
    run = dtprof.open_run(source)
    ChromeExporter().write(run, tmp_path)
    told = {} if source.is_dir() else {"trace_files": {run.ranks[0]: str(source)}}
    original = analysis.TraceAnalysis(trace_dir=str(source if source.is_dir() else source.parent), **told)
    ours = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    assert sorted(ours.t.get_all_traces()) == run.ranks
    assert counts(ours) == counts(original)

"""The analysis of memory: blocks against a plain replay, creep that is told from noise, and reasons where nothing is known."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dtprof
from dtprof.analyse import study_of
from dtprof.analyse.memory import CATEGORIES
from dtprof.analyse.memory_creep import LEAST_STEPS, Creep, creep, settled
from dtprof.analyse.memory_live import category_of, innermost, pairs
from dtprof.report.facts import gather
from dtprof.report.html import page
from dtprof.report.text import render
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table
from tests.unit.kineto_maker import Trace

MIB = 1 << 20


# -- creep


def read(*stretches):
    """Readings of every step."""
    return [(np.arange(len(s)), s) for s in stretches]


def test_a_leak_is_found_with_its_size():
    noise = np.random.default_rng(1).integers(-20, 20, 60) * 4096
    found = creep("memory_rss", read(1000 * MIB + np.arange(60) * 3 * MIB + noise))
    assert found.grows
    assert found.low <= 3 * MIB <= found.high
    assert abs(found.bytes_per_step - 3 * MIB) < 0.05 * MIB


def test_a_leak_is_found_across_the_jump_that_a_capture_makes():
    before, after = np.arange(20) * MIB, 500 * MIB + np.arange(20, 40) * MIB
    found = creep("memory_rss", read(before, after))
    assert found.grows
    assert found.bytes_per_step == MIB


@pytest.mark.parametrize(
    "values",
    [
        np.full(100, 7 * MIB),
        np.where(np.arange(100) < 50, 0, 900 * MIB),
        np.minimum(np.arange(100), 30) * MIB,
        np.arange(100) % 10 * MIB,
        np.arange(100, 0, -1) * MIB,
        np.arange(100) * 1024,
    ],
    ids=["flat", "one jump", "fills up", "saw", "shrinks", "less than a page"],
)
def test_what_is_no_leak_is_not_called_one(values):
    assert not creep("memory_rss", read(values.astype(np.int64))).grows


def test_walks_without_drift_are_rarely_called_leaks():
    steps = np.random.default_rng(7).normal(0, 10 * MIB, (400, 100))
    called = sum(creep("memory_rss", read(1000 * MIB + np.cumsum(s).astype(np.int64))).grows for s in steps)
    # a binomial of 400 at 0.001 exceeds 3 in less than one case of a thousand
    assert called <= 3


@pytest.mark.parametrize("count", [0, 1, LEAST_STEPS - 1])
def test_it_abstains_on_few_steps(count):
    assert isinstance(creep("memory_rss", read(np.arange(count) * MIB)), str)


def test_it_abstains_where_the_steps_are_in_shreds():
    assert isinstance(creep("memory_rss", read(*[np.arange(1) * MIB] * 25)), str)


def test_steps_around_a_capture_and_at_the_start_are_left_out():
    steps = np.arange(40)
    stretches = settled(steps, steps * 10, np.array([15, 16, 17]))
    assert [(v[0] // 10, v[-1] // 10) for _, v in stretches] == [(3, 11), (21, 39)]
    assert [(s[0], s[-1]) for s, _ in stretches] == [(3, 11), (21, 39)]


def test_gaps_end_a_stretch():
    steps = np.array([0, 1, 2, 3, 4, 5, 9, 10])
    assert [s.tolist() for s, _ in settled(steps, steps, np.array([], int))] == [[3, 4, 5], [9, 10]]


def test_readings_a_few_steps_apart_tell_the_same_growth():
    rng = np.random.default_rng(3)
    steps = np.concatenate([np.arange(32), 32 + np.cumsum(rng.choice([5, 5, 5, 6], 100))])
    stretches = settled(steps, steps * MIB, np.array([], int))
    assert sum(len(s) for s, _ in stretches) > 90
    found = creep("memory_rss", stretches)
    assert found.grows
    assert found.bytes_per_step == MIB


def test_readings_at_uneven_distances_tell_the_same_growth():
    """As when steps take now longer and now shorter than usual, and memory is read by the clock."""
    rng = np.random.default_rng(3)
    steps = np.cumsum(rng.integers(3, 6, 100))
    assert len(settled(steps, steps * MIB, np.array([], int))) == 1
    slow = np.cumsum(rng.choice([1, 1, 2, 3], 60))
    assert creep("memory_rss", settled(slow, slow * MIB, np.array([], int))).bytes_per_step == pytest.approx(MIB)
    found = creep("memory_rss", settled(steps, steps * MIB, np.array([], int)))
    assert found.bytes_per_step == pytest.approx(MIB)


# -- blocks


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.booleans()), max_size=60))
def test_frees_are_paired_as_a_plain_replay_does(events):
    address = np.array([a for a, _, _ in events], np.int64)
    size = np.array([n if new else -n for _, n, new in events], np.int64)
    expected = {}
    live: dict[int, int] = {}
    for i, (a, _, new) in enumerate(events):
        if new:
            live[a] = i
            expected[i] = 2**62
        elif a in live:
            expected[live.pop(a)] = i
    born, died = pairs(address, size)
    assert dict(zip(born.tolist(), died.tolist(), strict=True)) == expected


def test_kinds_of_blocks():
    assert category_of("forward", False, True) == "activation"
    assert category_of("forward", True, True) == "temporary"
    assert category_of("backward", False, False) == "gradient"
    assert category_of("optimizer", False, False) == "optimizer"
    assert category_of("optimizer", False, True) == "temporary"
    assert category_of(None, True, True) is None
    assert category_of(None, False, False) is None


def test_the_innermost_frame_is_that_of_python_where_there_is_one():
    assert innermost("c10::alloc (x.cpp:1)\nforward (model.py:3)") == "forward (model.py:3)"
    assert innermost("c10::alloc (x.cpp:1)") == "c10::alloc (x.cpp:1)"
    assert innermost(None) is None


def memory(trace, ts, address, size, total):
    args = {"Device Type": 0, "Device Id": -1, "Addr": address, "Bytes": size, "Total Allocated": total, "Total Reserved": 0}
    trace.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 10, "tid": 10, "ts": ts, "args": args}
    )


def test_a_trace_with_allocator_events(tmp_path):
    """Forward of two layers, each keeping its result; a temporary in the backward pass; a gradient that stays."""
    t = Trace(rank=0, world=1)
    t.step(0, 0, 100)
    t.range("forward", 5, 40)
    t.range("module#layer=Net", 6, 39)
    t.range("module#layer=a", 7, 19)
    t.range("module#layer=b", 20, 30)
    t.range("backward", 45, 80)
    t.op("aten::mm", 8, 9)
    memory(t, 2, 100, 7, 7)
    memory(t, 8, 200, 1000, 1007)
    memory(t, 9, 300, 40, 1047)
    memory(t, 10, 300, -40, 1007)
    memory(t, 21, 400, 500, 1507)
    memory(t, 35, 500, 4, 1511)
    memory(t, 50, 600, 800, 2311)
    memory(t, 51, 400, -500, 1811)
    memory(t, 52, 600, -800, 1011)
    memory(t, 53, 700, 300, 1311)
    memory(t, 54, 200, -1000, 311)
    run = dtprof.open_run(t.write(tmp_path / "rank0.json"))
    table = run.table("memory", 0)
    assert table.text("phase") == [None, *["forward"] * 5, *["backward"] * 5]
    assert table.text("module")[:6] == [None, "a", "a", "a", "b", "Net"]
    (part,) = study_of(run).result("memory").parts
    known = {k: v for k, v in part.categories.items() if v is not None}
    assert known == {"activation": 1504, "temporary": 800, "gradient": 300}
    assert {(o.name, o.bytes) for o in part.modules} == {("a", 1000), ("b", 500), ("Net", 4)}
    assert {k for k, v in part.categories.items() if v is None} <= set(part.why)
    # on the host levels are relative, and a trace alone knows no absolute ones
    assert part.peak is None
    assert part.why["peak"]


# -- counters


def run_of(metrics=(), memory_rows=(), steps=60):
    """A run of one part with per-step counters: metric -> function of the step."""
    rows = [{"step": s, "metric": m, "value": float(f(s)), "unit": "bytes"} for s in range(steps) for m, f in metrics]
    kinds = [{"step": s, "host_ts": s * 10, "host_dur": 10, "kind": "train", "captured": False} for s in range(steps)]
    tables = {("metrics", 0): Table.from_rows("metrics", rows), ("steps", 0): Table.from_rows("steps", kinds)}
    tables[("memory", 0)] = Table.from_rows("memory", memory_rows)
    return Run(Manifest(parts=[Part(ordinal=0, rank=0)]), MemoryStore(tables), "run", "dtprof")


def test_counters_of_a_device():
    counters = {
        "memory_rss": lambda s: 50 * MIB,
        "memory_rss_peak": lambda s: 60 * MIB,
        "memory_allocated": lambda s: 10 * MIB + s * 65536,
        "memory_allocated_peak": lambda s: 30 * MIB + min(s, 5) * MIB,
        "memory_reserved": lambda s: 40 * MIB,
        "memory_inactive_split": lambda s: 6 * MIB,
        "memory_ooms": lambda s: 2,
    }
    (part,) = study_of(run_of(counters.items())).result("memory").parts
    assert (part.peak.bytes, part.peak.basis, part.peak.step) == (35 * MIB, "allocated", 5)
    assert part.fragmentation.free == 40 * MIB - (10 * MIB + 59 * 65536)
    assert part.fragmentation.held == 6 * MIB
    assert part.failures == 2
    assert part.creep == Creep("memory_allocated", 65536.0, 65536.0, 65536.0, 57, True)


def test_the_state_is_what_its_fullest_count_says():
    rows = [
        {"ts": t, "device": d, "category": c, "bytes": n, "module": m}
        for t, d, c, n, m in [
            (1, 0, "parameter", 100, "a"), (1, 1, "parameter", 50, "a"), (1, 0, "gradient", 70, "a"),
            (1, 0, "optimizer", 9, "b"), (2, 0, "parameter", 120, "a"), (2, 0, "optimizer", 300, "b"),
        ]
    ]  # fmt: skip
    (part,) = study_of(run_of([("memory_rss", lambda s: 1)], rows)).result("memory").parts
    assert (part.categories["parameter"], part.categories["gradient"], part.categories["optimizer"]) == (150, 70, 300)
    assert part.modules[0].name == "b"


def test_evaluation_steps_are_not_compared_with_training_steps():
    run = run_of([("memory_rss", lambda s: s * MIB)])
    kinds = run.table("steps", 0).with_columns(kind=["eval"] * 60)
    store = MemoryStore({("metrics", 0): run.table("metrics", 0), ("steps", 0): kinds})
    (part,) = study_of(Run(run.manifest, store, "run", "dtprof")).result("memory").parts
    assert part.creep is None
    assert "0" in part.why["creep"]


def test_a_part_without_data_has_no_entry():
    assert study_of(run_of()).result("memory").parts == ()


def test_every_category_is_told_or_has_a_reason():
    (part,) = study_of(run_of([("memory_rss", lambda s: 1)])).result("memory").parts
    assert set(part.categories) == set(CATEGORIES)
    for name, value in part.categories.items():
        assert value is not None or part.why[name]


@pytest.mark.parametrize("parts", [1, 3, 20])
def test_terminal_and_page_show_the_section(parts):
    one = run_of([("memory_rss", lambda s: s * MIB), ("memory_rss_peak", lambda s: (parts + s) * MIB)])
    tables = {(t, p): one.table(t, 0) for t in ("metrics", "steps") for p in range(parts)}
    manifest = Manifest(parts=[Part(ordinal=p, rank=p) for p in range(parts)])
    facts = gather(study_of(Run(manifest, MemoryStore(tables), "run", "dtprof")))
    for width in (40, 80, 120):
        lines = [line.plain for line in render(facts, width, False)]
        assert all(len(line) <= width for line in lines)
        text = " ".join(" ".join(lines).split())
        assert "resident memory grows by 1.00 MiB per step" in text
    assert ("highest of 20 processes" in text) == (parts == 20)
    assert "grows by" in page(facts)


def test_the_document_is_json(tmp_path):
    from dtprof.report.document import document_of

    facts = gather(study_of(run_of([("memory_rss", lambda s: s * MIB)])))
    (part,) = json.loads(json.dumps(document_of(facts), allow_nan=False))["memory"]
    assert part["creep"]["bytes_per_step"] == MIB
    assert part["fragmentation"] is None
    assert part["why"]["fragmentation"]

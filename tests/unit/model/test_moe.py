"""Experts: two ranks of gloo by hand, whose experts take so many ms per token, under even experts and under capacities."""

import math

import numpy as np
import pytest

from dtprof.edits import parse_edits
from dtprof.ingest.match import match
from dtprof.ingest.store import IngestStore
from dtprof.model.moe.fit import slope_of
from dtprof.model.moe.loads import Load, changed
from dtprof.model.offered import offers
from dtprof.model.whatif import what_if
from dtprof.run import Manifest, Part, Run
from dtprof.table import Table

MS = 1_000_000
BASE = 1_700_000_000_000_000_000
# ms: before dispatch, per token, of every pass through the experts, of an all-to-all and its bytes, after combine
ROUTER, PER_TOKEN, PASS, LATENCY, PER_BYTE, REST = 5, 0.5, 1, 1, 0.001, 10
TOKEN = 16  # bytes
# tokens of experts 0 to 3 in every step; ranks have two each
STEPS = ((10, 20, 10, 80), (30, 10, 20, 60), (10, 10, 5, 95), (20, 20, 10, 70), (10, 20, 30, 60))
ASSIGNED = 120


def took(tokens, sent=ASSIGNED / 2):
    """Length of a step, ms, where the ranks' experts have these tokens and each rank has sent so many."""
    moved = LATENCY + PER_BYTE * TOKEN * max(*tokens, sent)
    return ROUTER + moved + PASS + PER_TOKEN * max(tokens) + moved + REST


def by_rank(experts):
    return experts[0] + experts[1], experts[2] + experts[3]


def tables(rank, loads, *, named=True, tokens=True, dropped=None):
    """The tables of one rank."""
    rows, comm, steps, metrics = [], [], [], []
    at = 0.0

    def op(name, start, dur, kind="cpu_op", lane=0, step=0, parent=None):
        rows.append(
            {
                "name": name, "ts": BASE + round(start * MS), "dur": round(dur * MS), "lane": lane, "kind": kind,
                "step": step, "within": parent,
            }
        )  # fmt: skip

    for k, experts in enumerate(loads):
        mine = by_rank(experts)
        begin, whole = at, took(mine)
        moved = LATENCY + PER_BYTE * TOKEN * max(*mine, ASSIGNED / 2)
        back = begin + ROUTER + moved + PASS + PER_TOKEN * mine[rank]
        meet = begin + ROUTER + moved + PASS + PER_TOKEN * max(mine)
        op("router", begin, ROUTER, step=k)
        for word, start, over in (("dispatch", begin + ROUTER, begin + ROUTER + moved), ("combine", back, meet + moved)):
            around = f"{word}#layer=0" if named else "exchange"
            op(around, start, 0.02, "range", step=k)
            op("c10d::alltoall_base_", start + 0.005, 0.01, step=k, parent=around)
            op("gloo:all_to_all", start + 0.005, over - start - 0.005, "comm", 1, step=k)
        op("expert", begin + ROUTER + moved, back - begin - ROUTER - moved, step=k)
        op("rest", meet + moved, REST, step=k)
        at = begin + whole
        steps.append({"step": k, "host_ts": BASE + round(begin * MS), "host_dur": round(whole * MS)})
        steps[-1] |= {"captured": True, "complete": True, "kind": "train"}
        mine_alone = {2 * rank: experts[2 * rank], 2 * rank + 1: experts[2 * rank + 1]} if tokens else {}
        for metric, counts in (("moe_tokens", mine_alone), ("moe_dropped", dropped or {})):
            metrics += [{"step": k, "metric": metric, "value": float(n), "layer": "0", "expert": e} for e, n in counts.items()]
    rows.sort(key=lambda row: (row["ts"], -row["dur"]))
    for i, row in enumerate(rows):
        around = row.pop("within")
        if around is not None:
            row["parent"] = max(n for n in range(i) if rows[n]["name"] == around)
    moves = [i for i, row in enumerate(rows) if row["kind"] == "comm"]
    for n, i in enumerate(moves):
        sent, received = TOKEN * ASSIGNED // 2, TOKEN * by_rank(loads[n // 2])[rank]
        if n % 2:
            sent, received = received, sent
        comm.append(
            {
                "event": i, "op": "all_to_all", "bytes_in": sent, "bytes_out": received, "bytes_known": "exact",
                "known_by": "collector", "group": 0, "seq": n,
            }
        )  # fmt: skip
    lanes = [
        {"id": n, "process": 0, "device": -1, "thread": n, "name": r, "role": r} for n, r in enumerate(("training", "gloo"))
    ]
    groups = [{"id": 0, "name": "default", "ranks": (0, 1), "size": 2, "backend": "gloo"}]
    made = {"events": rows, "comm": comm, "steps": steps, "lanes": lanes, "groups": groups, "metrics": metrics}
    return {name: Table.from_rows(name, found) for name, found in made.items()}


def job(loads=STEPS, ranks=(0, 1), **kw):
    store = IngestStore({r: tables(r, loads, **kw) for r in ranks}, {})
    run = Run(Manifest(run_id="x", parts=[Part(ordinal=r, rank=r, world_size=2) for r in ranks]), store, "", "test")
    store.derive = lambda: match(run)
    run.table("collectives")
    return run


def predicted(run, *edits):
    return what_if(run, parse_edits(edits))


MEASURED = np.mean([took(by_rank(s)) for s in STEPS])


def test_even_experts_take_the_mean_of_the_ranks():
    found = predicted(job(), "moe.balance=even")
    assert found.withheld == ()
    assert found.measured_ns == pytest.approx(MEASURED * MS, rel=1e-3)
    assert found.predicted_ns == pytest.approx(took((60, 60)) * MS, rel=5e-3)
    assert found.low_ns <= found.predicted_ns <= found.high_ns < found.measured_ns
    assert "from 10 passes" in found.notes[0] and "1.00 predicted" in found.notes[1]


def test_the_simulated_run_is_as_long():
    found = predicted(job(), "moe.balance=even")
    made = found.make_run()
    steps = made.table("steps", 0)
    assert np.mean(steps["host_dur"][:4]) == pytest.approx(took((60, 60)) * MS, rel=0.01)


@pytest.mark.parametrize("capacity", [1.0, 1.25, 2.0])
def test_a_capacity_cuts_what_is_beyond(capacity):
    limit = 2 * math.ceil(capacity * 60 / 4)
    kept = [[min(n, limit) for n in experts] for experts in STEPS]
    truth = np.mean([took(by_rank(k), sum(k) / 2) for k in kept])
    found = predicted(job(), f"moe.capacity_factor={capacity}")
    assert found.predicted_ns == pytest.approx(truth * MS, rel=5e-3)
    gone = 1 - sum(map(sum, kept)) / (ASSIGNED * len(STEPS))
    assert f"{100 * gone:.0f}% of the assignments are dropped (0% measured)" in found.notes[-1]


def test_a_capacity_that_nothing_reaches_changes_nothing():
    found = predicted(job(), "moe.capacity_factor=4")
    assert found.predicted_ns == pytest.approx(found.measured_ns, rel=1e-3)


def test_even_experts_stay_as_they_are_though_their_slope_is_not_told():
    found = predicted(job(((30, 30, 30, 30),) * 5), "moe.balance=even")
    assert found.predicted_ns == pytest.approx(found.measured_ns, rel=1e-3)
    assert "differ too little" in found.notes[0]


def test_a_slope_that_is_not_told_is_no_prediction_of_fewer_tokens():
    found = predicted(job(((30, 30, 30, 30),) * 5), "moe.capacity_factor=0.5")
    assert found.predicted_ns is None and "differ too little" in found.withheld[0]


def test_dropped_tokens_come_back_where_the_capacity_is_larger():
    loads = ((20, 20, 10, 30), (30, 10, 20, 30), (10, 10, 5, 30), (20, 20, 10, 30))
    run = job(loads, dropped={3: 20})
    found = predicted(run, "moe.capacity_factor=4")
    more = np.mean([took(by_rank((*s[:3], 70))) for s in loads])
    # what a rank sends was written down as if nothing was dropped
    assert found.predicted_ns == pytest.approx(more * MS, rel=0.03)
    assert "0% of the assignments are dropped (34% measured)" in found.notes[-1]


def test_what_is_missing_is_named():
    assert "moe_tokens" in predicted(job(tokens=False), "moe.balance=even").withheld[0]
    assert "dtprof.annotate('dispatch'" in predicted(job(named=False), "moe.balance=even").withheld[0]
    assert "bring the traces of all ranks" in predicted(job(ranks=(1,)), "moe.balance=even").withheld[0]
    other = predicted(job(), "moe.balance=even", "ideal.rank=1")
    assert other.withheld == ("ideal.rank is not part of the model of experts",)


def test_experts_are_offered_where_tokens_are_recorded():
    keys = {key for offer in offers(job()) for key in offer.keys}
    assert {"moe.balance", "moe.capacity_factor"} <= keys
    assert not any(key.startswith("moe.") for offer in offers(job(tokens=False)) for key in offer.keys)


LOAD = Load({(0, 0): 10, (0, 1): 30, (1, 2): 0, (1, 3): 80})


def test_even_and_capped_loads():
    assert set(changed(LOAD, 2, even=True, capacity=None).tokens.values()) == {30}
    capped = changed(LOAD, 2, even=False, capacity=1.25)
    # ceil(1.25 * 60 / 4) = 19 from each of two ranks
    assert list(capped.tokens.values()) == [10, 30, 0, 38]
    assert capped.dropped[3] == 42 and capped.wanted == LOAD.wanted
    assert changed(capped, 2, even=False, capacity=None).tokens == capped.tokens
    assert changed(capped, 2, even=True, capacity=None).computed == LOAD.computed
    assert sum(changed(LOAD, 2, even=True, capacity=0.5).tokens.values()) == 4 * 16


def test_chance_drops_as_many_as_drawn_numbers_do():
    drawn = np.random.default_rng(0).poisson(40, 200_000)
    for capacity in (0.8, 1.0, 1.25):
        load = Load({(r, e): 80.0 for e in range(4) for r in [e // 2]})
        kept = changed(load, 2, even=False, capacity=capacity, by_chance=True)
        assert kept.tokens[0, 0] / 2 == pytest.approx(np.minimum(drawn, math.ceil(capacity * 40)).mean(), rel=0.01)


def test_a_slope_leaves_out_what_was_delayed():
    load = np.tile([10.0, 20.0, 40.0, 80.0], 8)
    times = 1000 + 50 * load + np.repeat([3.0, -3.0, -3.0, 3.0], 8)
    times[5] += 20_000
    found = slope_of(load, times)
    assert found.determined and found.value == pytest.approx(50, rel=0.02) and found.low < 50 < found.high


def test_a_slope_that_pairs_do_not_tell_lies_between_nothing_and_all():
    found = slope_of([100.0] * 10, [1000.0] * 10)
    assert (found.low, found.high, found.determined) == (0, 10, False)
    noise = np.random.default_rng(1).normal(1000, 300, 20)
    assert not slope_of(np.linspace(80, 120, 20), noise).determined
    assert slope_of([0.0, 0.0], [1.0, 2.0]) is None

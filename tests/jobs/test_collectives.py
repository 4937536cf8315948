"""The job that measures collectives: its arithmetic, its results, and what the report makes of its run."""

import argparse
import json
import statistics
import subprocess
from collections import defaultdict

import pytest

pytest.importorskip("torch")

import torch

import dtprof
from dtprof.cli import main
from dtprof_sample_jobs import collectives
from dtprof_sample_jobs.collectives import OPS, TRACED, WARM_UP, Case, Team, blocks, check, parser
from dtprof_sample_jobs.common.calibration import merge, names, sizes, table

MODULE = "dtprof_sample_jobs.collectives"


def measured(op, times, *, size=1_000_000, in_flight=1):
    """What the ranks of one group measured: one list of times for each."""
    entry = {"kind": "collective", "op": op, "group": "world", "ranks": tuple(range(len(times))), "n": len(times)}
    return [[{**entry, "bytes": size, "in_flight": in_flight, "groups": 1, "traced": False, "times_ns": t}] for t in times]


# algbw and busbw of 1 MB in 1 ms by hand, with the factors of nccl-tests, doc/PERFORMANCE.md
BY_HAND = [
    ("all_reduce", 2, 1.0, 1.0),
    ("all_reduce", 4, 1.0, 1.5),
    ("all_reduce", 8, 1.0, 1.75),
    ("all_gather", 4, 1.0, 0.75),
    ("reduce_scatter", 4, 1.0, 0.75),
    ("all_to_all", 4, 1.0, 0.75),
    ("all_to_all_uneven", 4, 1.0, 0.75),
    ("broadcast", 4, 1.0, 1.0),
    ("reduce", 4, 1.0, 1.0),
    ("send_recv", 4, 1.0, 1.0),
    ("all_reduce", 1, 1.0, 0.0),
]


@pytest.mark.parametrize(("op", "ranks", "algbw", "busbw"), BY_HAND)
def test_bandwidths_are_those_computed_by_hand(op, ranks, algbw, busbw):
    (row,) = merge(measured(op, [[1_000_000] * 3] * ranks))
    assert (row["algbw_gb_s"], row["busbw_gb_s"]) == pytest.approx((algbw, busbw))
    assert row["uneven"] == (op == "all_to_all_uneven")


def test_two_in_flight_move_twice_the_bytes():
    (row,) = merge(measured("all_reduce", [[2_000_000]] * 4, in_flight=2))
    assert (row["algbw_gb_s"], row["busbw_gb_s"]) == pytest.approx((1.0, 1.5))


def test_who_came_last_measures_an_operation_that_ends_together_and_who_ends_last_any_other():
    times = [[50, 20, 30], [10, 40, 30]]
    (together,), (apart,) = merge(measured("all_reduce", times)), merge(measured("broadcast", times))
    assert (together["times_ns"], together["median_ns"], together["low_ns"], together["high_ns"]) == ([10, 20, 30], 20, 10, 30)
    assert (apart["times_ns"], apart["median_ns"], apart["low_ns"], apart["high_ns"]) == ([50, 40, 30], 40, 30, 50)


def test_a_barrier_has_no_bandwidth():
    (row,) = merge(measured("barrier", [[10, 12]] * 2, size=0))
    assert (row["median_ns"], row["algbw_gb_s"], row["busbw_gb_s"]) == (11, None, None)
    assert "barrier" in table([row])


def test_groups_that_worked_at_the_same_time_get_a_line_each():
    per_rank = [
        [{**measured("all_reduce", [[t]] * 2)[0][0], "group": "halves", "ranks": ranks}]
        for t, ranks in ((10, (0, 1)), (20, (0, 1)), (40, (2, 3)), (30, (2, 3)))
    ]
    assert [(row["ranks"], row["median_ns"]) for row in merge(per_rank)] == [((0, 1), 10), ((2, 3), 30)]


def test_a_link_is_half_a_round_trip_and_what_a_large_message_adds_to_it():
    entry = {"kind": "link", "ranks": (0, 1), "bytes": 1_000_000, "traced": False}
    seen = {**entry, "round_trip_ns": [2000, 2000, 9000], "times_ns": [1_002_000, 1_002_000, 1_009_000]}
    (row,) = merge([[seen], [{**entry, "round_trip_ns": [1, 1, 1], "times_ns": [1, 1, 1]}]])
    assert (row["latency_ns"], row["bandwidth_gb_s"]) == (1000, 1.0)
    (slower,) = merge([[{**seen, "times_ns": [1999, 1999, 1999]}], [seen]])
    assert slower["bandwidth_gb_s"] is None
    assert "not resolved" in table([slower])


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("4K", (4096,)), ("1,2K,3M", (1, 2048, 3 << 20)), ("4K:64K:4", (4096, 16384, 65536)), ("1:1000:10", (1, 10, 100, 1000))],
)
def test_sizes(text, bytes_):
    assert sizes(text) == bytes_


@pytest.mark.parametrize("text", ["", "4X", "0", "4K:1M", "4K:1M:1", "1M:4K:2", "4K,1M:2M:2", "17G", "-1"])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="are no sizes"):
        sizes(text)


def test_names_are_known_ones():
    assert names("b,a,b", known=("a", "b")) == ("b", "a")
    with pytest.raises(argparse.ArgumentTypeError, match="'c' is none of a, b"):
        names("a,c", known=("a", "b"))


def test_groups_cover_all_ranks_once_and_are_no_second_world():
    assert blocks("world", 3) == [(0, 1, 2)]
    assert blocks("halves", 8) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert blocks("pairs", 6) == [(0, 1), (2, 3), (4, 5)]
    assert [blocks(name, n) for name in ("halves", "pairs") for n in (1, 2, 3, 5)] == [[]] * 8


WRONG = [
    (["--ops", "all_scatter"], "'all_scatter' is none of all_reduce"),
    (["--sizes", "4X"], "are no sizes"),
    (["--groups", "thirds"], "'thirds' is none of world"),
    (["--groups", "halves"], "needs an even number of ranks, 4 or more"),
    (["--repeats", "0"], "no whole number of 1 or more"),
    (["--capture", "5:8"], "invalid choice"),
    (["--inject", "slow_link=1:100mbit"], "only the lab can shape a link"),
    (["--inject", "slow_rank=1:20ms"], "this job does not have it"),
    (["--lab", "rate=fast"], "is no rate of a lab"),
    (["--lab", "rate=1gbit", "--inject", "slow_link=2:100mbit"], "there is no rank 2"),
    (["--nonsense"], "has no option --nonsense"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_options_are_one_line_before_any_process_starts(words, said, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(subprocess, "Popen", lambda *_a, **_k: pytest.fail("a process was started"))
    assert main(["job", "collectives", "--ranks", "2", *words, "--out", str(tmp_path / "run")]) == 3
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_slow_link_is_accepted_in_the_lab(monkeypatch):
    monkeypatch.setenv("DTPROF_LAB", "rate=1gbit")
    check(parser().parse_args(["--inject", "slow_link=1:100mbit"]), ranks=2)


def test_a_wrong_result_ends_the_job(monkeypatch):
    wrong = Case(lambda: [], 8, torch.zeros(2), torch.tensor([0.0, 1.0]))
    monkeypatch.setattr(collectives, "build", lambda *_: wrong)
    team = Team("world", (0, 1), 1, None)
    with pytest.raises(RuntimeError, match=r"all_reduce on world \[0, 1\] gave a wrong result on its rank 1"):
        collectives.prove("all_reduce", team, 8, torch.device("cpu"))


def lines(out):
    return [json.loads(line) for line in (out / "calibration.jsonl").read_text().splitlines()]


def by_kind(run):
    """Operations of a run by (op, bytes, group), as the collectives table has them."""
    found = defaultdict(list)
    operations = run.table("collectives")
    for row in (operations.row(i) for i in range(len(operations))):
        found[row["op"], row["bytes"], row["group"]].append(row)
    return found


def test_two_ranks(run, tmp_path):
    """All operations; the results are checked in the job itself."""
    out = tmp_path / "run"
    run(2, ["-m", MODULE, "--sizes", "64K", "--repeats", "2", "--link-size", "64K", "--out", str(out)])
    rows = lines(out)
    alone = [row for row in rows if row["kind"] == "collective" and not row["traced"] and row["in_flight"] == 1]
    assert [(row["op"], row["uneven"], row["bytes"]) for row in alone] == [
        (op.removesuffix("_uneven"), op == "all_to_all_uneven", 65536 * (op != "barrier")) for op in OPS
    ]
    assert {len(row["times_ns"]) for row in rows} == {2}
    assert all(row["low_ns"] <= row["median_ns"] <= row["high_ns"] for row in alone)
    both = [(row["in_flight"], row["groups"]) for row in rows if row.get("in_flight", 1) > 1 and not row["traced"]]
    assert both == [(2, 1), (2, 2)]
    assert [row["ranks"] for row in rows if row["kind"] == "link" and not row["traced"]] == [[0, 1], [1, 0]]
    assert len([row for row in rows if row["traced"]]) == len([row for row in rows if not row["traced"]])

    opened = dtprof.open_run(out)
    assert (opened.manifest.job, opened.manifest.mesh) == ("collectives", {"world": 2})
    assert opened.manifest.groups[0]["ranks"] == [0, 1]
    assert main(["report", str(out)]) == 0
    found = by_kind(opened)
    for op in ("all_gather", "broadcast", "reduce", "all_to_all"):  # gloo's reduce-scatter is an all-reduce, also by name
        assert {row["matched_by"] for row in found[op, 65536, "0,1"]} == {"seq"}, op
        assert {row["n_present"] for row in found[op, 65536, "0,1"]} == {2}, op
    assert len(found["all_gather", 65536, "0,1"]) == WARM_UP + 2
    events = opened.table("events", 0)
    layers, numbers = events.text("layer"), events["microbatch"].tolist()
    marked = {(layers[i], numbers[i]) for i, name in enumerate(events.text("name")) if (name or "").startswith("all_gather")}
    assert marked == {("world 65536", number) for number in range(WARM_UP + 2)}


@pytest.mark.slow
def test_four_ranks_in_all_groups(run, tmp_path):
    out = tmp_path / "run"
    run(4, ["-m", MODULE, "--sizes", "4K,1M", "--repeats", "3", "--link-size", "64K", "--out", str(out)])
    rows = [row for row in lines(out) if not row["traced"]]
    seen = {(row["group"], *row["ranks"]) for row in rows if row["kind"] == "collective"}
    assert seen == {("world", 0, 1, 2, 3), ("halves", 0, 1), ("halves", 2, 3), ("pairs", 0, 1), ("pairs", 2, 3)}
    assert len([row for row in rows if row["kind"] == "link"]) == 12
    opened = dtprof.open_run(out)
    assert [group["ranks"] for group in opened.manifest.groups if group["name"] == "halves"] == [[0, 1], [2, 3]]
    found = by_kind(opened)
    for group, n in (("0,1,2,3", 4), ("0,1", 2), ("2,3", 2)):
        assert {(row["n"], row["n_present"]) for row in found["all_gather", 1 << 20, group]} == {(n, n)}


@pytest.mark.slow
def test_the_report_sees_the_bandwidth_that_the_job_measured(network_lab, tmp_path):
    """In a lab, where the network and not the machine's load decides; large sizes, within the job's own spread."""
    out = tmp_path / "run"
    ops = "all_reduce,all_gather,all_to_all"
    words = ["--ops", ops, "--sizes", "4M", "--no-links", "--no-concurrent", "--out", str(out)]
    assert main(["job", "collectives", "--ranks", "2", "--lab", "rate=500mbit", *words]) == 0
    opened = dtprof.open_run(out)
    assert opened.manifest.knobs["lab"] == "rate=500mbit"
    found = by_kind(opened)
    traced = [row for row in lines(out) if row["traced"]]
    assert len(traced) == 3
    for row in traced:
        seen = found[row["op"], row["bytes"], "0,1"]
        assert {one["matched_by"] for one in seen} == {"seq"}
        assert len(seen) == WARM_UP + TRACED
        busbw = [one["busbw"] for one in seen[WARM_UP:] if one["busbw"] is not None]
        assert len(busbw) >= TRACED - 1
        factor = row["busbw_gb_s"] * row["median_ns"]
        assert 0.97 * factor / row["high_ns"] <= statistics.median(busbw) <= 1.03 * factor / row["low_ns"], (row, busbw)

"""Every fault, injected once, changes what a run measures by its documented truth; what is none is refused before a start."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.advise.rules.ddp_sync import NoSync  # noqa: E402
from dtprof.analyse import study_of  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof.ranges import parse_range  # noqa: E402
from dtprof_sample_jobs import ddp  # noqa: E402
from dtprof_sample_jobs.common.faults import COMMON, KINDS, Faults, check_faults, fault  # noqa: E402

LAYERS, BYTES, MS = 4, 131072, 30
LAYER = """
[[layers]]
name = "block"
repeat = {layers}
forward_ms = 2.0
backward_ms = 4.0
tensors = [{bytes}]
"""
ACCUMULATE = ["--accumulate", "3"]
RUNS = {
    "healthy": [],
    "slow_rank": ["--inject", f"slow_rank=1:{MS}ms"],
    "late_collective": ["--inject", f"late_collective=1:{MS}ms"],
    "accumulated": ACCUMULATE,
    "no_sync_forgotten": [*ACCUMULATE, "--inject", "no_sync_forgotten=all"],
    "slow_backward": ["--inject", f"slow_backward=1:{MS}ms"],
    "slow_data": ["--inject", f"slow_data=1:{MS}ms"],
    "slow_host": ["--inject", f"slow_host=1:{MS}ms"],
    "barrier_every_step": ["--inject", "barrier_every_step=all"],
    "checkpoint_stall": ["--inject", f"checkpoint_stall=1:{MS}ms"],
    "tiny_buckets": ["--inject", "tiny_buckets=all:0.001"],
    "find_unused": ["--inject", "find_unused=all"],
    "no_sync_backward_only": [*ACCUMULATE, "--inject", "no_sync_backward_only=all"],
    "memory_creep": ["--inject", "memory_creep=1:8"],
    "out_of_data": ["--inject", "out_of_data=1:3"],
    "gc": ["--inject", f"gc=1:{MS}ms"],  # the last, for it changes the heap of the process
}
QUICK = ("healthy", "slow_rank", "no_sync_forgotten")


def measured(run, scripts, folder, names):
    layers = folder / "layers.toml"
    layers.write_text(LAYER.format(layers=LAYERS, bytes=BYTES))
    words = ["--emulate", str(layers), "--steps", "12", "--capture", "3:11"]
    plan = [
        {"name": n, "module": "dtprof_sample_jobs.ddp", "words": [*words, *RUNS[n], "--out", str(folder / n)]} for n in names
    ]
    (folder / "plan.json").write_text(json.dumps(plan))
    run(2, [str(scripts / "jobs_in_turn.py"), str(folder / "plan.json")])
    return {name: dtprof.open_run(folder / name) for name in names}


@pytest.fixture(scope="module")
def quick(run, scripts, tmp_path_factory):
    return measured(run, scripts, tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def every(run, scripts, tmp_path_factory):
    return measured(run, scripts, tmp_path_factory.mktemp("every"), RUNS)


def ranges(run, rank, name):
    """Milliseconds in ranges of a name, whatever their tags, per captured step: {step: ms}."""
    events = run.table("events", rank)
    rows = events.take(events.is_("kind", "range"))
    total = {}
    for text, step, dur in zip(rows.text("name"), rows["step"].tolist(), rows["dur"].tolist(), strict=True):
        if parse_range(text)[0] == name:
            total[step] = total.get(step, 0) + dur / 1e6
    return total


def phase(run, rank, name):
    """Least over the captured steps of the milliseconds in ranges of a name: what else the machine does only adds."""
    return min(ranges(run, rank, name).values())


def more(runs, name, rank, part, healthy="healthy"):
    """By how many milliseconds a phase of a rank is longer than in the healthy run."""
    return phase(runs[name], rank, part) - phase(runs[healthy], rank, part)


def planted(run, rank, operator="dtprof_lab::slow_compute"):
    """Least milliseconds of planted operators in a captured step."""
    events = run.table("events", rank)
    rows = events.take(events.is_("name", operator))
    return min(rows["dur"][rows["step"] == step].sum() / 1e6 for step in ranges(run, rank, "forward"))


def operations(run, op, rank=0):
    """Operations per captured step, and the bytes of each."""
    comm = run.table("comm", rank)
    rows = comm.take(comm.is_("op", op))
    events = run.table("events", rank)
    steps = events["step"][rows["event"]]
    captured = list(ranges(run, rank, "forward"))
    counts = {int((steps == step).sum()) for step in captured}
    assert len(counts) == 1, counts
    return counts.pop(), rows["bytes_in"][np.isin(steps, captured)].tolist()


def check_slow_rank(runs):
    assert planted(runs["slow_rank"], 1) == pytest.approx(MS, rel=0.1)
    assert planted(runs["slow_rank"], 0) == 0


def check_late_collective(runs):
    comm, events = runs["late_collective"].table("comm", 0), runs["late_collective"].table("events", 0)
    rows = comm.take((comm["bytes_in"] == 4) & comm.is_("op", "all_reduce"))
    waited = np.median(events["dur"][rows["event"]]) / 1e6
    assert waited == pytest.approx(MS, rel=0.1)


def check_no_sync(runs, name):
    once, _ = operations(runs["healthy"], "all_reduce")
    assert operations(runs[name], "all_reduce")[0] == 3 * once
    told = list(NoSync().find(study_of(runs[name])))
    assert [f.edit for f in told] == [{"ddp.accumulation": 3}]
    assert not list(NoSync().find(study_of(runs["healthy"])))


def test_a_slow_rank_is_slow_in_forward_by_what_was_asked(quick):
    check_slow_rank(quick)


def test_no_sync_forgotten_multiplies_the_all_reduces(quick):
    check_no_sync(quick, "no_sync_forgotten")


def test_the_runs_open_with_nothing_missing_and_carry_mesh_groups_and_tags(quick):
    for name, run in quick.items():
        manifest = run.manifest
        assert manifest.mesh == {"dp": 2}
        assert manifest.coordinates == {"0": {"dp": 0}, "1": {"dp": 1}}
        assert [(g["name"], g["ranks"]) for g in manifest.groups] == [("default_pg", [0, 1]), ("dp", [0, 1])]
        assert manifest.knobs["inject"] == [w for w in RUNS[name] if "=" in w]
        for part in run.parts:
            assert len(run.table("quality", part.ordinal)) == 0
            events = run.table("events", part.ordinal)
            assert {"data", "forward", "backward", "optimizer"} <= set(events.text("phase"))
            assert {f"blocks.{n}" for n in range(LAYERS)} <= set(events.text("layer"))
            microbatches = set(events["microbatch"][events["microbatch"] >= 0].tolist())
            assert microbatches == ({0, 1, 2} if "--accumulate" in RUNS[name] else set())


@pytest.mark.slow
def test_slow_rank_and_late_collective(every):
    check_slow_rank(every)
    assert more(every, "slow_rank", 1, "forward") == pytest.approx(MS, rel=0.1)
    check_late_collective(every)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), [("slow_backward", "backward"), ("slow_data", "data"), ("slow_host", "forward")])
def test_a_phase_of_the_rank_is_longer_by_what_was_asked(every, name, part):
    assert more(every, name, 1, part) == pytest.approx(MS, rel=0.1)
    in_operators = planted(every[name], 1)
    assert in_operators == (pytest.approx(MS, rel=0.1) if name == "slow_backward" else 0)
    others = {"forward", "data"} - {part}
    assert all(abs(more(every, name, 1, other)) < MS / 10 for other in others)


@pytest.mark.slow
def test_garbage_is_collected_for_as_long_as_was_asked(every):
    metrics = every["gc"].table("metrics", 1)
    rows = metrics.take(metrics.is_("metric", "gc_time"))
    # collecting goes on until TIME has passed: what else the machine does takes from it
    assert np.median(rows["value"][2:]) / 1e6 == pytest.approx(MS, rel=0.1)
    assert more(every, "gc", 1, "forward") == pytest.approx(MS, rel=0.1)
    assert abs(more(every, "gc", 0, "forward")) < MS / 10


@pytest.mark.slow
def test_memory_creeps_by_what_was_asked_and_on_its_rank_alone(every):
    growth = []
    for rank in (0, 1):
        metrics = every["memory_creep"].table("metrics", rank)
        rows = metrics.is_("metric", "memory_rss")
        growth.append(np.median(np.diff(metrics["value"][rows]) / np.diff(metrics["step"][rows])) / 2**20)
    assert growth[1] == pytest.approx(8, rel=0.1)
    assert growth[0] < 0.8


@pytest.mark.slow
def test_a_rank_out_of_data_has_fewer_steps_and_joins_in_all_operations(every):
    run = every["out_of_data"]
    assert [len(run.table("steps", rank)) for rank in (0, 1)] == [12, 9]
    # the other rank goes on to its end: nobody hung, and no operation is left without its partner
    captured = run.table("collectives")
    assert set(captured["n_present"][captured["step"] < 9].tolist()) == {2}


@pytest.mark.slow
def test_a_barrier_in_every_step(every):
    assert operations(every["barrier_every_step"], "barrier")[0] == 1
    comm = every["healthy"].table("comm", 0)
    assert not comm.is_("op", "barrier").any()


@pytest.mark.slow
def test_a_checkpoint_stalls_every_fifth_step(every):
    found = ranges(every["checkpoint_stall"], 1, "checkpoint")
    assert sorted(found) == [4, 9]
    assert min(found.values()) == pytest.approx(MS, rel=0.1)
    assert ranges(every["checkpoint_stall"], 0, "checkpoint") == {}
    for part in every["checkpoint_stall"].parts:
        steps = every["checkpoint_stall"].table("steps", part.ordinal)
        assert steps["step"][steps.is_("kind", "checkpoint")].tolist() == [4, 9]
    healthy = every["healthy"].table("steps", 1)
    assert set(healthy.text("kind")) == {"train", "warm-up"}


@pytest.mark.slow
def test_tiny_buckets_are_one_all_reduce_for_each_tensor(every):
    healthy, sizes = operations(every["healthy"], "all_reduce")
    tiny, tiny_sizes = operations(every["tiny_buckets"], "all_reduce")
    assert (tiny, set(tiny_sizes)) == (LAYERS, {BYTES})
    assert healthy < tiny
    assert sum(sizes) == sum(tiny_sizes)


@pytest.mark.slow
def test_find_unused_costs_one_more_all_reduce_of_a_number_per_parameter(every):
    healthy, _ = operations(every["healthy"], "all_reduce")
    found, sizes = operations(every["find_unused"], "all_reduce")
    assert found == healthy + 1
    assert 4 * LAYERS in sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no_sync_forgotten", "no_sync_backward_only"])
def test_without_no_sync_every_micro_batch_is_reduced(every, name):
    check_no_sync(every, name)
    assert operations(every["accumulated"], "all_reduce") == operations(every["healthy"], "all_reduce")
    assert not list(NoSync().find(study_of(every["accumulated"])))


@pytest.mark.parametrize(
    ("text", "where", "amount"),
    [
        ("slow_rank=1:20ms", 1, 20e6),
        ("slow_rank=0:1.5ms", 0, 1.5e6),
        ("slow_backward=12:300us", 12, 300e3),
        ("gc=2:1s", 2, 1e9),
        ("tiny_buckets=all:0.1", None, 0.1),
        ("find_unused=all", None, 0),
        ("few_microbatches=all:2", None, 2),
        ("slow_link=3:200mbit", 3, 200e6),
    ],
)
def test_a_fault_is_read(text, where, amount):
    read = fault(text)
    assert (read.kind, read.where, read.amount, str(read)) == (text.partition("=")[0], where, amount, text)


NOT_FAULTS = [
    ("", "there is no such fault"),
    ("fast_rank=1:20ms", "there is no such fault"),
    ("slow_rank", "write slow_rank=RANK:TIME, as in slow_rank=1:20ms"),
    ("slow_rank=1", "write slow_rank"),
    ("slow_rank=1:20", "write slow_rank"),
    ("slow_rank=a:20ms", "write slow_rank"),
    ("slow_rank=1:-2ms", "write slow_rank"),
    ("slow_rank=1:0ms", "does nothing"),
    ("find_unused=all:2", "write find_unused=all, as"),
    ("tiny_buckets=1:2", "write tiny_buckets=all:MIB"),
    ("late_collective=1:11s", "too late"),
    ("router_skew=1:1.5", "more than all"),
    ("router_skew=all:0.5", "write router_skew=EXPERT:SHARE, as in router_skew=1:0.5"),
]


@pytest.mark.parametrize(("text", "why"), NOT_FAULTS)
def test_what_is_no_fault_is_refused(text, why):
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        fault(text)


def test_a_fault_that_the_job_does_not_have_is_refused():
    with pytest.raises(argparse.ArgumentTypeError, match="this job does not have it; faults here are slow_rank"):
        fault("stage_imbalance=1:2ms", COMMON)


@pytest.mark.parametrize(
    ("text", "ranks", "stages", "why"),
    [
        ("slow_rank=2:1ms", 2, 1, "there is no rank 2"),
        ("stage_imbalance=2:1ms", 4, 2, "there is no stage 2"),
        ("slow_link=0:1gbit", 2, 1, "only the lab"),
    ],
)
def test_a_fault_without_a_place_is_refused(text, ranks, stages, why):
    with pytest.raises(InputError, match=why):
        check_faults([fault(text)], ranks, stages)
    if "link" not in text:
        check_faults([fault(text)], 8, 8)


def test_faults_are_those_of_the_rank_or_of_all():
    planted = [fault("slow_data=1:2ms"), fault("slow_data=1:3ms"), fault("few_microbatches=all:2")]
    mine, other = Faults(planted, rank=1), Faults(planted, rank=0)
    assert (mine.ns("slow_data"), other.ns("slow_data")) == (5_000_000, 0)
    assert (mine.has("slow_data"), other.has("slow_data"), mine.has("gc")) == (True, True, False)
    assert (other.amount("few_microbatches"), other.amount("tiny_buckets")) == (2, None)
    assert Faults([fault("stage_imbalance=1:2ms")], rank=0, stage=1).ns("stage_imbalance") == 2_000_000


REFUSED = [
    (["--bucket-cap-mb", "0"], 2, "holds nothing"),
    (["--bucket-cap-mb", "1", "--bucket-cap-mb-list", "1,2"], 2, "exclude each other"),
    (["--top-k", "0"], 2, "no part"),
    (["--compress", "fp16", "--mark-buckets"], 2, "one communication hook"),
    (["--compress", "powersgd", "--bucket-cap-mb", "1"], 2, "aborts on gloo"),
    (["--inject", "no_sync_forgotten=all"], 2, "--accumulate 2"),
    (["--uneven", "40"], 2, "no step"),
    (["--inject", "out_of_data=1:40"], 2, "no step"),
    (["--uneven", "20", "--inject", "out_of_data=0:20"], 2, "no step"),
    (["--inject", "out_of_data=1:2", "--inject", "late_collective=1:1ms"], 2, "collective of the job's own"),
    (["--uneven", "1", "--inject", "barrier_every_step=all"], 2, "collective of the job's own"),
    (["--data-parallel"], 2, "one process"),
    (["--data-parallel"], 1, "needs GPUs"),
    (["--precision", "tf32"], 2, "needs a CUDA device"),
    (["--dim", "33"], 2, "no multiple"),
    (["--clip", "-1"], 2, "no norm"),
    (["--data", "corpus", "--vocabulary", "100"], 2, "too small"),
    (["--inject", "slow_rank=2:1ms"], 2, "no rank 2"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="some of these make sense on a GPU")
@pytest.mark.parametrize(("words", "ranks", "why"), REFUSED)
def test_options_that_make_no_sense_are_refused(words, ranks, why):
    with pytest.raises(InputError, match=why):
        ddp.check(ddp.parser().parse_args(words), ranks)


def test_every_kind_of_fault_is_documented(scripts):
    page = (scripts.parents[2] / "docs" / "jobs.md").read_text()
    for name, kind in KINDS.items():
        assert f"`{kind.form(name)}`" in page

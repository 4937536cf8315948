"""The real ``nsys stats`` on what we write says what dtprof's tables say, to the nanosecond."""

import csv
import subprocess
from collections import Counter, defaultdict

import pytest

import dtprof
from dtprof.export.common import part_names
from dtprof.export.nsys import NsysExporter, session_start
from tests.nsys.conftest import REPORTS
from tests.nsys.expected import Part, counted, reported, sums
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

SMALL = (
    "cpu_gloo_rank34of300.json.gz", "vllm_cuda_graph_execution.json.gz",
    "mi250_small_train.json.gz", "critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz", "no_rank.json.gz",
)  # fmt: skip
LARGE = (
    "a100_rank0of2_collective_args_ns.json.gz",
    "a100_rank3of8_allreduce_alltoall.json.gz",
    "b200_rank0of8_71_groups_multimem.json.gz",
    "h100_qwen_0.5b.json.gz",
    "mi300x_rank0of8_ddp_resnet.json.gz",
    "v100_ns_resolution.json.gz",
    "v100_rank1of2_allreduce_alltoall.json.gz",
    "dlrm_8rank_v100",
    "critical_path_cuda_event_sync_event_sync_trace.json.gz",
    "critical_path_simple_add_benchmark_result_493459_1694039959_trace.json.gz",
    "no_distributed_info.json.gz",
    "rank_non_gpu.json.gz",
)


def check(run, folder, stats):
    NsysExporter().write(run, folder)
    zero, names = session_start(run), part_names(run)
    for part in run.parts:
        expected = Part(run, part)
        shift = part.clock_offset_ns - zero
        got = stats(folder / f"{names[part.ordinal]}.sqlite", REPORTS)
        check_nvtx(expected, got, shift)
        check_device(expected, got)
        check_api(expected, got)
        check_launches(expected, got, shift)
        if expected.ops and expected.calls:
            check_projection(expected, got, shift)


def check_nvtx(part, got, shift):
    ranges = part.ranges()
    names = sums((name, dur) for name, _, dur, _ in ranges)
    assert reported(got["nvtxppsum"], "Range") == names
    assert reported([r for r in got["nvtxsum"] or [] if r["Style"] == "PushPop"], "Range") == names
    copies = sums((f"dtprof.launch:{r['name']}", r["dur"]) for r, _ in part.launched_elsewhere())
    assert reported(got["nvtxsesum"], "Range") == copies
    assert reported([r for r in got["nvtxsum"] or [] if r["Style"] == "StartEnd"], "Range") == copies
    trace = counted(got["nvtxpptrace"], "Name", "Start (ns)", "Duration (ns)")
    missing = Counter((name, str(ts + shift), str(dur)) for name, ts, dur, _ in ranges)
    missing.subtract(trace)
    assert all(count >= 0 for count in missing.values())
    # of ranges that coincide on a thread (integer microseconds) each is the other's parent: nsys lists neither
    times = Counter((lane, ts, dur) for _, ts, dur, lane in ranges)
    twins = [(lane, ts, dur) for (lane, ts, dur), count in times.items() if count > 1]
    for name, ts, dur, lane in ranges:
        if missing[(name, str(ts + shift), str(dur))]:
            assert any(other == lane and a <= ts and a + d >= ts + dur for other, a, d in twins), name


def check_device(part, got):
    kernels = sums((e["name"], e["dur"]) for e in part.kernels)
    found = defaultdict(list)
    for row in got["gpukernsum"] or []:
        found[row["Name"]].append(
            (int(row["Instances"]), int(row["Total Time (ns)"]), int(row["Min (ns)"]), int(row["Max (ns)"]))
        )
    # one row per grid and block
    merged = {n: tuple(f(c) for f, c in zip((sum, sum, min, max), zip(*v, strict=True), strict=True)) for n, v in found.items()}
    assert merged == kernels
    directions = part.run.table("events", part.part.ordinal).text("copy_kind")

    def operation(e):
        return "[CUDA memset]" if e["kind"] == "memset" else f"[CUDA memcpy {directions[e['row']] or 'Unknown'}]"

    memory = [e for e in part.ops if e["kind"] in ("memcpy", "memset")]
    assert reported(got["gpumemtimesum"], "Operation", "Count") == sums((operation(e), e["dur"]) for e in memory)
    sizes = sums((operation(e), max(e["bytes"], 0)) for e in memory)
    for row in got["gpumemsizesum"] or []:
        count, total, *_ = sizes[row["Operation"]]
        assert int(row["Count"]) == count
        assert float(row["Total (MB)"]) == pytest.approx(total / 1e6, abs=6e-4)
    assert len(got["gputrace"] or []) == len(part.ops)
    assert sum(int(r["Total Time (ns)"]) for r in got["gpusum"] or []) == sum(e["dur"] for e in part.ops)
    assert sum(int(r["Duration (ns)"]) for r in got["gputrace"] or []) == sum(e["dur"] for e in part.ops)


def check_api(part, got):
    assert reported(got["cudaapisum"], "Name", "Num Calls") == sums((e["name"], e["dur"]) for e in part.calls)
    assert len(got["cudaapitrace"] or []) == len(part.calls)


def check_launches(part, got, shift):
    launched = [e for e in part.kernels if e["launch"] >= 0]
    trace = counted(
        got["kernexectrace"], "API Start (ns)", "API Dur (ns)", "Kernel Start (ns)", "Kernel Dur (ns)", "Kernel Name"
    )
    calls = [part.events[e["launch"]] for e in launched]
    assert trace == Counter(
        (str(c["ts"] + shift), str(c["dur"]), str(e["ts"] + shift), str(e["dur"]), e["name"])
        for e, c in zip(launched, calls, strict=True)
    )
    assert sum(int(r["Count"]) for r in got["kernexecsum"] or []) == len(launched)


def check_projection(part, got, shift):
    """A range and its copies together project onto all device work that was launched inside the range."""
    found = defaultdict(lambda: [2**63, -1, 0])
    for row in got["nvtxgpuproj"] or []:
        domain, _, name = row["Name"].partition(":")
        if domain in ("dtprof", "dtprof.launch"):
            merged = found[(name, int(row["Orig Start (ns)"]), int(row["Orig Duration (ns)"]))]
            start = int(row["Projected Start (ns)"])
            merged[0] = min(merged[0], start)
            merged[1] = max(merged[1], start + int(row["Projected Duration (ns)"]))
            merged[2] += int(row["NumGPUOps"])
    projections = part.projections()
    keys = {}
    for row, (start, end, calls) in projections.items():
        event = part.events[row]
        key = (event["name"], event["ts"] + shift, event["dur"])
        times = sum(1 for r in projections if part.events[r]["name"] == key[0] and part.events[r]["ts"] == event["ts"])
        keys[key] = [start + shift, end + shift, calls * times]
    assert {k: v for k, v in found.items() if k in keys} == keys
    training = {(e["name"], e["ts"] + shift, e["dur"]) for e in part.spans if part.roles.get(e["lane"]) == "training"}
    assert not {k for k in found if k in training} - set(keys)


@pytest.mark.parametrize("name", SMALL)
def test_kineto_files(truth, tmp_path, stats, name):
    check(dtprof.open_run(truth / "traces" / "kineto" / name), tmp_path / "out", stats)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_large_kineto_files(truth, tmp_path, stats, name):
    check(dtprof.open_run(truth / "traces" / "kineto" / name), tmp_path / "out", stats)


@pytest.mark.parametrize("name", ["pipeline_batches", "cuda_graph", "simulated", "gloo_cpu"])
def test_made_runs(tmp_path, stats, name):
    check(matched(SHAPES[name]()), tmp_path / "out", stats)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SHAPES if n not in ("pipeline_batches", "cuda_graph", "simulated", "gloo_cpu")])
def test_other_made_runs(tmp_path, stats, name):
    check(matched(SHAPES[name]()), tmp_path / "out", stats)


def test_analyze_runs(nsys, truth, tmp_path):
    run = dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")
    NsysExporter().write(run, tmp_path)
    words = [nsys, "analyze", "--quiet", "--force-overwrite", "true", "--format", "csv", "--rule", "cuda-sync-api"]
    (database,) = tmp_path.glob("*rank00000.sqlite")
    done = subprocess.run([*words, str(database)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(int(row["Duration (ns)"]) for row in csv.DictReader(done.stdout.strip().splitlines()))
    calls = [e["dur"] for e in Part(run, run.parts[0]).calls if "Synchronize" in e["name"]]
    assert found == sorted(calls)

"""Forward and backward by sequence number: as torch.profiler's own flows have them, and where numbers do not tell."""

import pytest

import dtprof
from tests.unit.ingest.nsys.maker import Report, opened

ENGINE = "autograd::engine::evaluate_function: "


def pairs(run):
    events, deps = run.table("events", 0), run.table("deps", 0)
    names = events.text("name")
    rows = deps.take(deps.is_("kind", "forward_backward"))
    return sorted((names[s], names[d]) for s, d in zip(rows["src"].tolist(), rows["dst"].tolist(), strict=True))


def test_links_are_those_that_torch_profiler_draws(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        for _ in range(3):
            model(torch.randn(4, 8)).sum().backward()
    prof.export_chrome_trace(str(tmp_path / "x.json"))
    report = Report()
    report.run("gemm", 1, 10, 20)
    found = prof.profiler.kineto_results.events()
    zero = min(e.start_ns() for e in found)
    for number, event in enumerate(found, 1):
        text = event.name() + (f", seq = {event.sequence_nr()}" if event.sequence_nr() >= 0 else "") + f", op_id = {number}"
        start = event.start_ns() - zero
        report.range(text, start, start + event.duration_ns(), tid=event.start_thread_id())
    own = pairs(opened(report.write(tmp_path / "x.sqlite")))
    drawn = pairs(dtprof.open_run(tmp_path / "x.json", cache=False))
    assert own == drawn and len(own) > 10


def test_the_innermost_operator_of_a_number_and_nothing_inside_the_backward_pass(tmp_path):
    report = Report()
    report.run("gemm", 1, 10, 20)
    report.range("aten::linear, seq = 5", 100, 200).range("aten::addmm, seq = 5", 110, 190)
    report.range(ENGINE + "AddmmBackward0, seq = 5", 300, 400, tid=9).range("AddmmBackward0, seq = 5", 310, 390, tid=9)
    report.range("aten::mm, seq = 6", 320, 330, tid=9)
    report.range(ENGINE + "MulBackward0, seq = 6", 410, 420, tid=9)
    assert pairs(opened(report.write(tmp_path / "x.sqlite"))) == [("aten::addmm", "AddmmBackward0")]


def test_numbers_that_two_threads_use_join_nothing(tmp_path):
    report = Report()
    report.run("gemm", 1, 10, 20)
    report.range("aten::mm, seq = 5", 100, 200).range("aten::mm, seq = 5", 110, 190, tid=77)
    report.range("aten::mul, seq = 6", 200, 210)
    report.range(ENGINE + "MmBackward0, seq = 5", 300, 400, tid=9).range(ENGINE + "MulBackward0, seq = 6", 410, 420, tid=9)
    assert pairs(opened(report.write(tmp_path / "x.sqlite"))) == [("aten::mul", ENGINE + "MulBackward0")]

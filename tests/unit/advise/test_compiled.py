"""torch.compile around the whole backward pass: nothing overlaps, the cause is named, and no bucket size is recommended."""

import pytest

from dtprof.advise import findings
from dtprof.advise.compiled import REMEDY, owns_backward
from dtprof.analyse import study_of
from tests.unit.advise.test_predicted import by_rule, run_on
from tests.unit.model.test_ddp import COST
from tests.unit.shapes.build import T0, US, PartBuilder, matched, shape

MIB = 1 << 20
NAME = "CompiledFunctionBackward"


def job(graphs, reductions, *, name=NAME):
    """Two CPU ranks: compiled backward ``graphs`` (begin, end) us, and all-reduces of 3 ms from each of ``reductions`` on."""
    builders = []
    for r in range(2):
        made = PartBuilder(r, r, world_size=2)
        thread, worker = made.thread(), made.thread("gloo", 2, "pt_gloo_runner")
        group = made.group("0", (0, 1), backend="gloo")
        for step in range(3):
            at = step * 50_000
            for begin, end in graphs:
                made.span(thread, "cpu_op", name, at + begin, at + end, step=step)
            for number, begin in enumerate(reductions):
                event = made.span(worker, "comm", "gloo:all_reduce", at + begin, at + begin + 3_000, step=step)
                made.comm(event, "all_reduce", group, step * len(reductions) + number, MIB)
                end = T0 + (at + begin + 3_000) * US
                times = {"ready": T0 + (at + begin) * US, "start": T0 + (at + begin) * US, "end": end}
                made.add("buckets", step=step, bucket=number, members=(f"w{number}",), bytes=MIB, **times)
            made.step(step, at, at + 50_000)
        builders.append(made)
    return matched(shape(builders, {}, "dtprof", world_size=2))


def test_all_reduces_after_one_compiled_backward_pass_have_their_cause():
    run = job([(10_000, 30_000)], [30_100, 33_200, 36_300])
    assert owns_backward(run)
    found = {f.rule: f for f in findings(study_of(run))}
    assert found["ddp.buckets"].next == REMEDY
    assert "nothing overlaps" in found["ddp.buckets"].title
    assert found["comm.exposed"].next == found["comm.exposed"].apply == REMEDY
    assert "compiled graph owns the backward pass" in found["comm.exposed"].why


@pytest.mark.parametrize(
    "run",
    [
        job([(10_000, 20_000), (21_000, 30_000)], [20_100, 30_100]),
        job([(10_000, 30_000)], [30_100], name="AddmmBackward0"),
        job([(10_000, 30_000)], []),
    ],
    ids=["a graph for each bucket", "not compiled", "nothing is reduced"],
)
def test_where_all_reduces_begin_between_graphs_it_is_not_the_compiler(run):
    assert not owns_backward(run)
    assert all(f.next != REMEDY for f in findings(study_of(run)))


def test_no_bucket_size_is_recommended(monkeypatch):
    run, _ = run_on(COST)
    assert "ddp.bucket_size" in by_rule(run)
    monkeypatch.setattr("dtprof.advise.rules.buckets.owns_backward", lambda run: True)
    assert "ddp.bucket_size" not in by_rule(run)

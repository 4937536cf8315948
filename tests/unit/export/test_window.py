"""Runs cut to ranks and steps."""

import numpy as np
import pytest

from dtprof.analyse import study_of
from dtprof.errors import InputError
from dtprof.export.window import Span, cut, parse_steps
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched


def run_of(name):
    return matched(SHAPES[name]())


def test_nothing_asked_is_the_run_itself():
    run = run_of("pipeline_batches")
    assert cut(run) is run


def test_a_rank():
    run = run_of("pipeline_batches")
    one = cut(run, ranks={1})
    assert one.ranks == [1]
    assert set(one.table("participations")["part"].tolist()) == {1}
    alone, together = (study_of(r).result("accounting").parts[i].steps for r, i in ((one, 0), (run, 1)))
    assert [(s.ts, s.dur_ns, s.accounting["compute_ns"]) for s in alone] == [
        (s.ts, s.dur_ns, s.accounting["compute_ns"]) for s in together
    ]


def test_a_step_keeps_its_events_and_their_references():
    run = run_of("cuda_graph")
    part = cut(run, steps=Span(1, 2))
    events = part.table("events", 0)
    assert set(events["step"].tolist()) == {1}
    assert part.table("steps", 0)["step"].tolist() == [1]
    kernels = events.is_("kind", "kernel")
    assert set(np.array(events.text("name"))[events["launch"][kernels]]) == {"cudaGraphLaunch"}
    args = part.table("kernel_args", 0)
    assert events.take(args["event"]).text("kind") == ["kernel"] * 3


def test_operations_of_the_steps_point_at_the_same_events():
    run = run_of("pipeline_batches")
    part = cut(run, steps=Span(1, 2))
    before, after = run.table("participations"), part.table("participations")
    assert 0 < len(after) < len(before)
    ids = set(after["collective"].tolist())
    for row in range(len(after)):
        one = after.row(row)
        event = part.table("events", one["part"]).row(one["event"])
        (was,) = [before.row(i) for i in range(len(before)) if before["collective"][i] == one["collective"]]
        assert event["ts"] == run.table("events", was["part"])["ts"][was["event"]]
        comm = part.table("comm", one["part"]).row(one["row"])
        assert comm["event"] == one["event"]
    assert set(part.table("collectives")["id"].tolist()) == ids


@pytest.mark.parametrize("text", ["", "5", "8:5", "5:5", "a:b", "-1:3", "1:2:3", ":", "1:99999999999999999999999999"])
def test_what_is_no_range_of_steps(text):
    with pytest.raises(InputError, match="--steps"):
        parse_steps(text)


def test_steps_and_ranks_that_are_not_there():
    run = run_of("pipeline_batches")
    with pytest.raises(InputError, match="its steps are 0 to 1"):
        cut(run, steps=Span(7, 9))
    with pytest.raises(InputError, match="its ranks are 0, 1"):
        cut(run, ranks={5})

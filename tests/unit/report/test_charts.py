import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtprof.analyse.results import ACCOUNTING
from dtprof.numbers import Scale
from dtprof.report import svg
from dtprof.report.budget import BudgetRow, budget, mean, shown
from dtprof.report.charts import axes
from dtprof.report.charts import budget as budget_charts
from dtprof.report.charts import operations as operation_charts
from dtprof.report.charts import timeline as timeline_charts
from dtprof.report.charts.timeline import representative_step, timeline, timeline_figure
from dtprof.report.operations import participants
from tests.unit.report import build

MARKS = {"rect", "path"}


def budget_svg(facts):
    rows = budget(facts)
    average = mean(rows) if len(rows) > 1 else None
    return budget_charts.budget_figure(shown(rows), average, facts.accounting.mean_shares(), Scale.of(r.total for r in rows))


def figures(facts):
    yield budget_svg(facts)
    operations = facts.comm.operations
    top = max(max(o.dur_ns.values()) for o in operations)
    yield from (operation_charts.strip(o, participants(o), top) for o in operations)
    yield operation_charts.strip_axis(top)
    yield operation_charts.wait_against_move(3, 1)
    yield timeline_figure(timeline(facts))


DRAWN = [name for name in build.ALL if name != "nothing"]


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_well_formed_titled_and_labelled(name):
    for figure in figures(build.ALL[name]()):
        root = ET.fromstring(figure)
        assert root.get("aria-label")
        for mark in root.iter():
            if mark.tag in MARKS and mark.get("fill") != "var(--page)":
                title = mark.find("title")
                assert title is not None, figure
                assert title.text


@pytest.mark.parametrize("name", DRAWN)
def test_figures_hard_code_no_colour(name):
    for figure in figures(build.ALL[name]()):
        assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb", figure)


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_is_drawn_outside(name):
    for figure in figures(build.ALL[name]()):
        root = ET.fromstring(figure)
        _, _, width, height = map(float, root.get("viewBox").split())
        for mark in root.iter("rect"):
            x, y, w, h = (float(mark.get(k)) for k in ("x", "y", "width", "height"))
            assert w > 0
            assert x >= -0.1
            assert x + w <= width + 1.3
            assert y >= -0.1
            assert y + h <= height + 0.1
        for words in root.iter("text"):
            wide = svg.width_of(words.text, bold="b" in words.get("class", ""))
            x = float(words.get("x")) - {"end": wide, "middle": wide / 2}.get(words.get("text-anchor"), 0)
            assert x >= -1, words.text
            assert x + wide <= width + 8, words.text
            assert 0 < float(words.get("y")) <= height


def texts(figure):
    return [words.text for words in ET.fromstring(figure).iter("text")]


def test_bars_sum_to_their_steps_on_one_scale():
    facts = build.eight_ranks()
    root = ET.fromstring(budget_svg(facts))
    rows = budget(facts)
    rights = {}
    for mark in root.iter("rect"):
        who = mark.find("title").text.partition(" · ")[0]
        rights[who] = max(rights.get(who, 0), float(mark.get("x")) + float(mark.get("width")))
    scale = (axes.WIDTH - budget_charts.BESIDE - 64) / max(r.total for r in rows)
    for row in rows:
        assert rights[row.label] == pytest.approx(64 + row.total * scale, abs=1.1)


def test_bars_keep_the_order_of_the_accounting():
    row = BudgetRow("rank 0", 0, 0, {key: 10.0 * (i + 1) for i, key in enumerate(ACCOUNTING)}, 0)
    figure = budget_charts.budget_figure([row], None, dict.fromkeys(ACCOUNTING, 0.1), Scale.of([row.total]))
    places = [float(m.get("x")) for m in ET.fromstring(figure).iter("rect") if m.find("title") is not None]
    assert len(places) == len(ACCOUNTING)
    assert places == sorted(places)


def test_parts_under_a_pixel_are_not_drawn_but_named():
    facts = build.eight_ranks()
    rows = budget(facts)
    assert budget_charts.undrawn(rows) == ["copy_exposed_ns"]
    assert "copy" not in "".join(texts(budget_svg(facts)))


@given(st.dictionaries(st.sampled_from(ACCOUNTING), st.integers(1, 10**6), min_size=1))
def test_names_of_parts_never_lie_on_one_another(parts):
    whole = sum(parts.values())
    row = BudgetRow("rank 0", 0, 0, dict.fromkeys(ACCOUNTING, 0.0) | parts, 0)
    shares = {k: v / whole for k, v in row.parts.items()}
    figure = budget_charts.budget_figure([row], None, shares, Scale.of([whole]))
    names = [t for t in ET.fromstring(figure).iter("text") if "halo" in t.get("class", "")]
    assert len(names) <= budget_charts.MOST_LABELS
    places = sorted((t.get("y"), float(t.get("x")), svg.width_of(t.text, bold=True)) for t in names)
    for (y1, x1, w1), (y2, x2, _) in pairwise(places):
        assert y1 != y2 or x1 + w1 < x2


def test_strip_waits_then_moves_and_marks_the_last():
    operation = build.eight_ranks().comm.operations[0]
    root = ET.fromstring(operation_charts.strip(operation, participants(operation), 7_620_000))
    titles = [t.text for t in root.iter("title")]
    assert "operation 0 · rank 1 · waits 7.61\u00a0ms, then moves data 10\u00a0us" in titles
    assert "operation 0 · rank 7 · moves data 10\u00a0us, waits for nobody" in titles
    assert "rank 7 arrives last" in titles
    waits = [m for m in root.iter("rect") if "waits 7.61" in m.find("title").text]
    assert float(waits[0].get("width")) == pytest.approx(258 * 7610 / 7620, abs=0.01)


def test_unsplit_operations_are_striped():
    facts = build.eight_ranks(range(3))
    figure = operation_charts.strip(facts.comm.operations[0], [(0, "")], 7_620_000)
    assert "url(#p-unsplit)" in figure
    assert "var(--wait)" not in figure


def test_axis_states_its_unit_once():
    marks = "".join(axes.axis(64, 770, 10, 18_300_000))
    words = re.findall(r">([^<]+)</text>", marks)
    assert words == ["0", "3", "6", "9", "12", "15", "18 ms"]


def test_representative_step_is_the_median_of_those_all_have():
    facts = build.two_gloo()
    assert representative_step(facts) == 7
    accounts = facts.accounting.parts
    lengths = (30, 10, 20, 90, 40)
    changed = [
        replace(a, steps=tuple(replace(s, dur_ns=n * build.MS) for s, n in zip(a.steps, lengths, strict=True)))
        for a in accounts
    ]
    facts = replace(facts, accounting=replace(facts.accounting, parts=tuple(changed)))
    assert representative_step(facts) == 5
    changed[1] = replace(changed[1], steps=changed[1].steps[1:])
    assert representative_step(replace(facts, accounting=replace(facts.accounting, parts=tuple(changed)))) == 9
    assert representative_step(build.nothing()) is None


def test_timeline_draws_a_step_that_the_shown_ranks_have():
    """Of many processes with steps of their own few are shown: the step must be one of theirs."""
    facts = build.many_ranks(20)
    own = [
        replace(
            a,
            steps=tuple(
                replace(s, step=s.step if a.part in (5, 6) else 100 + a.part, dur_ns=s.dur_ns + a.part) for s in a.steps
            ),
        )
        for a in facts.accounting.parts
    ]
    drawn = timeline(replace(facts, accounting=replace(facts.accounting, parts=tuple(own)), findings=()))
    assert drawn.rows and all(r.device[1] > r.device[0] for r in drawn.rows)


def test_timeline_draws_the_longest_of_very_many_operations(monkeypatch):
    monkeypatch.setattr(timeline_charts, "MOST_SPANS", 3)
    facts = build.eight_ranks()
    spans = {r.rank: r.spans for r in timeline(facts).rows}
    monkeypatch.undo()
    every = {r.rank: r.spans for r in timeline(facts).rows}
    for rank, few in spans.items():
        assert sorted(s.end - s.start for s in few) == sorted(s.end - s.start for s in every[rank])[-3:]


def test_timeline_has_three_lanes_on_one_clock():
    facts = build.eight_ranks()
    drawn = timeline(facts)
    assert [r.label for r in drawn.rows] == [f"rank {r}" for r in range(8)]
    assert drawn.start == build.T0
    assert drawn.ends[0] == (0, facts.comm.operations[0].end_ns)
    wait = next(s for s in drawn.rows[1].spans if s.operation == 0)
    assert wait.turn - wait.start == 7_610_000
    figure = timeline_figure(drawn)
    assert "rank 1 · operation 0 all-to-all · waits 7.61\u00a0ms for rank 7" in figure
    assert "enters step 10 last, at 7.50\u00a0ms" in texts(figure)
    assert "waiting for rank 7 in operation 0, 7.61\u00a0ms" in texts(figure)


def test_timeline_of_cpu_jobs_uses_threads():
    drawn = timeline(build.two_gloo())
    assert drawn.step == 7
    assert all(len(r.compute[0]) and r.spans for r in drawn.rows)


def test_timeline_merges_what_the_eye_cannot_part():
    facts = build.eight_ranks()
    drawn = timeline(facts)
    many = tuple(
        replace(r, compute=(build.T0 + 2000 * np.arange(9000), build.T0 + 2000 * np.arange(9000) + 1000)) for r in drawn.rows
    )
    figure = timeline_figure(replace(drawn, rows=many))
    assert len(figure) < 100_000
    assert "in 9,000 intervals" in figure


def test_timeline_survives_a_run_without_events():
    facts = build.eight_ranks()
    facts = replace(facts, run=build.Run(facts.run.manifest, build.MemoryStore({}), "x", "simulated"))
    assert timeline_figure(timeline(facts))


def test_operation_numbers_never_lie_on_one_another():
    drawn = timeline(build.eight_ranks())
    close = replace(drawn, ends=tuple((100 + i, build.T0 + i * 150_000 + (i % 3) * 400_000) for i in range(40)))
    root = ET.fromstring(timeline_figure(close))
    numbers = [t for t in root.iter("text") if t.get("y") == "32" and t.get("class") == "b"]
    places = sorted((float(t.get("x")), svg.width_of(t.text, bold=True)) for t in numbers)
    assert len(places) > 1
    for (x1, w1), (x2, w2) in pairwise(places):
        assert x1 + w1 / 2 < x2 - w2 / 2

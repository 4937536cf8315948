"""Figures of the pages: lengths are true to their numbers, nothing is drawn twice, names stay text."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from dtprof.analyse.results import ACCOUNTING
from dtprof.report import svg
from dtprof.report.charts import matrix, memory, moved, overlap, pipeline, plain_bars, predicted, sizes, steps
from dtprof.report.pace import StepBar, bars, median_of, throughput
from tests.unit.report.build import MS, eight_ranks, operation, two_gloo

EVIL = "<b>&\"'"


def rects(figure, paint):
    """(x, y, width, height) of the marks in this paint."""
    root = ET.fromstring(figure)
    return [tuple(float(r.get(k)) for k in ("x", "y", "width", "height")) for r in root.iter("rect") if r.get("fill") == paint]


def parts(**ms):
    return dict.fromkeys(ACCOUNTING, 0) | {f"{k}_ns": int(v * MS) for k, v in ms.items()}


def some_steps(count=12):
    return [StepBar(i, 30 * MS, "train", parts(compute=20, comm_wait=10)) for i in range(count)]


def test_columns_are_as_high_as_their_steps():
    found = [*some_steps(), StepBar(12, 60 * MS, "train", None)]
    figure = steps.steps_figure(found, 30.0 * MS, 800.0, chosen=3)
    compute, wait, grey = (rects(figure, svg.fill(k)) for k in ("compute_ns", "comm_wait_ns", "idle_other_ns"))
    assert compute[0][3] / wait[0][3] == pytest.approx(2, rel=0.03)
    assert max(g[3] for g in grey) == pytest.approx(compute[0][3] + wait[0][3] + compute[0][3] + wait[0][3], rel=0.03)


def test_many_steps_become_a_line():
    root = ET.fromstring(steps.steps_figure(some_steps(steps.MANY + 1), 30.0 * MS, 800.0))
    line = root.find("polyline")
    assert len(line.get("points").split()) == steps.MANY + 1


def test_every_step_of_a_rank_is_its_accounting():
    facts = two_gloo()
    found = bars(facts, 1)
    assert [b.step for b in found] == [5, 6, 7, 8, 9]
    assert all(sum(b.parts.values()) == b.dur_ns for b in found)
    assert median_of(found) == found[0].dur_ns
    assert bars(facts, 7) == []


def test_a_slow_step_is_named_with_what_made_it_slow(monkeypatch):
    facts = two_gloo()
    account = facts.accounting.parts[0]
    slow = replace(
        account.steps[2],
        dur_ns=account.steps[2].dur_ns + 40 * MS,
        accounting={**account.steps[2].accounting, "idle_input_ns": account.steps[2].accounting["idle_input_ns"] + 40 * MS},
    )
    changed = replace(account, steps=(*account.steps[:2], slow, *account.steps[3:]))
    found = bars(replace(facts, accounting=replace(facts.accounting, parts=(changed, facts.accounting.parts[1]))), 0)
    assert [b.step for b in found if b.slow] == [7]
    assert found[2].cause.replace("\u00a0", " ") == "idle: input 40.0 ms longer"


def test_pace_is_none_where_nothing_was_recorded():
    facts = two_gloo()
    assert throughput(facts) is None


def test_tokens_by_the_time_of_steps():
    facts = two_gloo()
    tables = dict(facts.run.store._tables)
    for rank in (0, 1):
        tables["steps", rank] = tables["steps", rank].with_columns(tokens=[1000] * 5)
    facts.run.store._tables.update(tables)
    found = throughput(facts)
    assert (found.unit, found.per_step) == ("tokens", 2000)
    assert found.per_second == pytest.approx(2000 / 0.078)


def test_the_matrix_is_darker_where_there_is_more():
    levels = [matrix.log_level(v, 1000) for v in (0, 1, 10, 100, 1000)]
    assert levels == sorted(levels) and levels[0] == 0 and levels[-1] == 1
    cells = [matrix.Cell(0.5, "5", EVIL), matrix.Cell(None, "last", "nobody")]
    root = ET.fromstring(matrix.matrix_figure([(EVIL, cells)], [EVIL, "x"], "comm_wait_ns", 400.0, EVIL, [EVIL]))
    painted = [r for r in root.iter("rect") if r.get("fill") == svg.fill("comm_wait_ns")]
    assert [r.get("fill-opacity") for r in painted] == ["0.30"]
    assert root.get("aria-label") == EVIL


def test_bars_are_in_proportion():
    found = [plain_bars.Bar("a", 30.0, "30"), plain_bars.Bar(EVIL, 10.0, "10", paint="var(--copy)")]
    figure = plain_bars.bars_figure(found, "var(--wait)", 500.0, "bars")
    assert rects(figure, "var(--wait)")[0][2] == pytest.approx(3 * rects(figure, "var(--copy)")[0][2], rel=0.01)


def test_a_line_through_exact_points_is_found_again():
    made = [
        operation(i, "all_reduce", "", size, 5 + i, round(20 + size / 20_000), (0, 5))
        for i, size in enumerate((1_000_000, 2_000_000, 8_000_000))
    ]
    (fit,) = sizes.fits(made)
    assert fit.alpha_ns == pytest.approx(20_000, rel=1e-6) and fit.gb_s == pytest.approx(20, rel=1e-6)
    assert fit.points == 3
    root = ET.fromstring(sizes.sizes_figure(sizes.known(made), [fit], 700.0))
    assert len(list(root.iter("circle"))) == 3


def test_one_size_gives_no_line_and_unknown_sizes_no_point():
    same = [operation(i, "all_reduce", "", 1000, 5 + i, 20, (0, 5)) for i in range(3)]
    assert sizes.fits(same) == []
    assert sizes.known([operation(0, "all_reduce", "", 1000, 5, 20, (0, 5), bytes_known="unknown")]) == []


def test_lanes_lie_where_they_ran():
    first = overlap.Lane("bucket 0", 1000, 10 * MS, 20 * MS, 60 * MS, 30 * MS)
    lanes = (first, overlap.Lane(EVIL, None, 60 * MS, None, None))
    found = overlap.Lanes("rank 0", 100 * MS, (5 * MS, 40 * MS), lanes)
    assert found.exposed_ns == 20 * MS
    figure = overlap.overlap_figure(found, 900.0)
    ready, wait, move = (rects(figure, paint)[0] for paint in ("var(--muted)", "var(--wait)", "var(--transfer)"))
    assert move[2] == pytest.approx(3 * wait[2], rel=0.01) and ready[2] == pytest.approx(wait[2], rel=0.01)
    assert ready[0] + ready[2] == pytest.approx(wait[0], abs=0.1) and wait[0] + wait[2] == pytest.approx(move[0], abs=0.1)
    assert overlap.Lanes("rank 0", 100, None, lanes).exposed_ns == 0


def test_a_lane_whose_waiting_is_not_known_is_striped():
    figure = overlap.overlap_figure(overlap.Lanes("rank 0", 100, None, (overlap.Lane("send", 9, None, 10, 60),)), 900.0)
    assert (
        rects(figure, svg.fill("comm_unsplit_ns")) and not rects(figure, "var(--transfer)") and not rects(figure, "var(--wait)")
    )


def test_words_of_a_lane_do_not_cross_the_end_of_the_backward_pass():
    early, late = overlap.Lane("early", None, None, 10 * MS, 20 * MS), overlap.Lane("late", None, None, 80 * MS, 88 * MS)
    figure = overlap.overlap_figure(overlap.Lanes("rank 0", 100 * MS, (5 * MS, 90 * MS), (early, late)), 900.0)
    assert re.search(r'text-anchor="end"[^>]*>8.00.ms<', figure)
    assert not re.search(r'text-anchor="end"[^>]*>10.0.ms<', figure)


def test_passes_lie_where_they_ran_and_the_bubble_sums():
    boxes = [pipeline.Box("F", 0, 0, 0.0, 10.0 * MS), pipeline.Box("B", 0, 0, 20.0 * MS, 40.0 * MS)]
    figure = pipeline.grid_figure([("rank 0", boxes)], 50.0 * MS, 100.0 * MS, 900.0, 80.0, simulated=True)
    forward, backward = rects(figure, svg.fill("compute_ns"))
    assert backward[2] + 1 == pytest.approx(2 * (forward[2] + 1), rel=0.02)
    (whole,) = rects(figure, svg.fill("comm_wait_ns"))
    assert whole[2] == pytest.approx(5 * (forward[2] + 1), rel=0.02)
    bubble = pipeline.Bubble("rank 0", 30.0, 5.0, 10.0, 5.0)
    assert bubble.total == 50
    ET.fromstring(pipeline.bubble_figure([bubble], 800.0))


@pytest.mark.parametrize("count", [2, 50, 5000])
def test_the_level_keeps_its_peak_however_many_readings(count):
    ts = np.arange(count, dtype=np.int64) * MS
    held = np.full(count, 1 << 20, np.int64)
    held[count // 2] = 5 << 20
    figure = memory.level_figure(ts, held, [(int(ts[0]), "step 1")], 900.0, EVIL)
    root = ET.fromstring(figure)
    heights = [float(p.split(",")[1]) for p in root.find("polygon").get("points").split()]
    assert min(heights) == pytest.approx(float(root.find("circle").get("cy")), abs=0.01)
    assert "peak 5.00 MiB" in "".join(root.itertext()).replace("\u00a0", " ")


def test_categories_lie_on_one_another_up_to_the_level():
    ts = np.arange(3000, dtype=np.int64) * MS
    held = np.full(3000, 8 << 20, np.int64)
    held[1500] = 16 << 20
    layers = {"parameters": held // 4, "the rest": held - held // 4}
    root = ET.fromstring(memory.level_figure(ts, held, [], 900.0, EVIL, layers))
    below, above = ([float(p.split(",")[1]) for p in g.get("points").split()] for g in root.iter("polygon"))
    peak, floor = float(root.find("circle").get("cy")), max(below)
    assert min(above) == pytest.approx(peak, abs=0.01)
    assert floor - min(below) == pytest.approx((floor - peak) / 4, abs=0.05)
    words = "".join(root.itertext()).replace("\u00a0", " ")
    assert "parameters 2.00 MiB" in words and "the rest 6.00 MiB" in words


def test_passes_lie_above_the_lanes_where_they_ran():
    lane = overlap.Lane("gather 0", 5, None, 10 * MS, 20 * MS)
    passes = (("forward", 0, 30 * MS), ("backward", 30 * MS, 60 * MS), ("backward", 80 * MS, 90 * MS))
    figure = overlap.overlap_figure(overlap.Lanes("rank 0", 100 * MS, (30 * MS, 90 * MS), (lane,), passes), 900.0)
    bands = rects(figure, svg.fill("compute_ns"))
    assert [round(b[2] / bands[0][2], 3) for b in bands] == [1, 1, round(1 / 3, 3)]
    words = "".join(ET.fromstring(figure).itertext()).replace("\u00a0", " ")
    assert "forward 30.0 ms" in words and "backward 40.0 ms in 2 passes" in words


def test_marks_lead_only_where_they_are_asked_to():
    found = some_steps()
    assert "data-go" not in steps.steps_figure(found, None, 900.0)
    goes = re.findall(r'data-go="([^"]*)"', steps.steps_figure(found, None, 900.0, leads=True))
    assert set(goes) == {f"step={bar.step}" for bar in found}
    cell = matrix.Cell(0.5, "1", EVIL, go='page=timeline&rank=1"')
    assert 'data-go="page=timeline&amp;rank=1&quot;"' in matrix.matrix_figure([("r", [cell])], ["c"], "compute_ns", 900.0, "")


def test_a_measured_step_is_an_open_circle_on_the_range():
    points = [predicted.Point(str(v), v * MS, v * MS, v * MS, 15.0 * MS if v == 20 else None) for v in (10, 20, 30)]
    root = ET.fromstring(predicted.range_figure(points, None, 20.0 * MS, 700.0, "ddp.bucket_cap_mb"))
    circles = list(root.iter("circle"))
    (after,) = [c for c in circles if c.get("fill") == "var(--page)"]
    cy = [float(c.get("cy")) for c in circles if c is not after]
    assert float(after.get("cy")) == pytest.approx((cy[0] + cy[1]) / 2, abs=0.1)


def test_predicted_beside_measured_share_an_axis():
    rows = [
        predicted.Beside("measured now", "", 100.0 * MS, parts(compute=80, comm_transfer=20)),
        predicted.Beside("predicted", EVIL, 90.0 * MS, None, (85.0 * MS, 95.0 * MS), simulated=True),
    ]
    figure = predicted.beside_figure(rows, 800.0)
    (compute,), (whole,) = rects(figure, svg.fill("compute_ns")), rects(figure, svg.fill("idle_other_ns"))
    assert whole[2] + 1 == pytest.approx(90 / 80 * (compute[2] + 1), rel=0.01)
    points = [predicted.Point(str(v), v * MS, (v - 1) * MS, (v + 1) * MS) for v in (10, 20, 30)]
    root = ET.fromstring(predicted.range_figure(points, 1, 20.0 * MS, 700.0, "ddp.bucket_cap_mb"))
    assert len(list(root.iter("circle"))) == 3


def test_what_moved_points_where_it_went():
    keys = dict.fromkeys(ACCOUNTING, (0, 0)) | {"compute_ns": (10 * MS, 14 * MS), "comm_wait_ns": (9 * MS, 7 * MS)}
    figure = moved.moved_figure(keys, 800.0)
    longer, less = rects(figure, svg.fill("compute_ns"))[0], rects(figure, svg.fill("comm_wait_ns"))[0]
    assert longer[2] == pytest.approx(2 * less[2], rel=0.01)
    assert less[0] + less[2] == pytest.approx(longer[0], abs=0.1)


def test_a_step_that_the_capture_cuts_is_no_column():
    assert bars(eight_ranks(), 3) == []


@pytest.mark.parametrize("ms", [(94, 12, 12, 10), (80, 3, 3, 3), (5, 60, 4, 60), (100, 4, 90, 2)])
def test_names_of_the_parts_lie_on_no_leader_and_on_no_other(ms):
    step = parts(compute=ms[0], comm_wait=ms[1], comm_transfer=ms[2], idle_host=ms[3])
    root = ET.fromstring(predicted.beside_figure([predicted.Beside("measured now", "", sum(ms) * MS, step)], 760.0))
    names = [(float(t.get("x")), float(t.get("y")), svg.width_of(t.text or "", bold=True)) for t in root.iter("text")]
    names = [n for n in names if n[1] < predicted.TOP]
    leaders = [(float(line.get("x1")), float(line.get("y1"))) for line in root.iter("line") if line.get("class") == "lead"]
    assert len(names) == len(leaders) >= 3
    for x, y, wide in names:
        assert not [at for at, top in leaders if x < at < x + wide and top < y - 4]
        assert not [n for n in names if n[1] == y and x < n[0] < x + wide]

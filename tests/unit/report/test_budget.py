from dataclasses import replace

import pytest

from dtprof.report.budget import basis, budget, left_out, mean, part_label, shown
from dtprof.run import Part
from tests.unit.report import build


@pytest.mark.parametrize("name", ["eight", "three", "gloo", "many"])
def test_every_bar_sums_to_its_step(name):
    facts = build.ALL[name]()
    rows = {r.part: r for r in budget(facts)}
    for account in facts.accounting.parts:
        steps = account.steps
        assert rows[account.part].total == pytest.approx(sum(s.dur_ns for s in steps) / len(steps), abs=1e-3)


def test_rows_are_in_rank_order_and_name_the_culprit():
    rows = budget(build.eight_ranks())
    assert [r.label for r in rows] == [f"rank {r}" for r in range(8)]
    assert [r.rank for r in rows if r.culprit] == [7]
    assert rows[7].note == "waits least: the others wait for it"
    assert not any(r.note for r in rows[:7])


def test_no_note_where_nobody_waits():
    facts = build.eight_ranks()
    quiet = [build.account(r, {"compute_ns": 5}) for r in range(8)]
    facts = replace(facts, accounting=build.AccountingResult(tuple(quiet), True))
    assert not any(r.note for r in budget(facts))


def test_a_rule_that_names_everyone_names_no_culprit():
    assert build.eight_ranks(findings=(build.DRY,)).culprits == frozenset()


def test_mean_is_key_by_key():
    rows = budget(build.eight_ranks())
    average = mean(rows)
    assert average.total == pytest.approx(sum(r.total for r in rows) / 8)
    assert average.parts["comm_wait_ns"] == pytest.approx(sum(r.parts["comm_wait_ns"] for r in rows) / 8)


def test_many_ranks_show_shortest_median_longest_and_culprit():
    rows = budget(build.many_ranks())
    drawn = shown(rows)
    assert len(drawn) == 3
    by_time = sorted(rows, key=lambda r: r.total)
    assert {r.rank for r in drawn} == {by_time[0].rank, by_time[32].rank, by_time[-1].rank}
    assert [r.note.partition(";")[0] for r in drawn if r.rank == 41] == ["shortest, culprit"]
    assert left_out(rows) == "61 of 64 ranks lie between these and are not drawn."


def test_sixteen_ranks_are_all_shown():
    rows = budget(build.many_ranks(16))
    assert shown(rows) == rows
    assert left_out(rows) == ""


def test_several_parts_of_one_rank_are_told_apart():
    windows = [Part(ordinal=0, rank=3), Part(ordinal=1, rank=3, window=1)]
    attempts = [Part(ordinal=0, rank=3), Part(ordinal=1, rank=3, attempt=1)]
    twins = [Part(ordinal=0, rank=3), Part(ordinal=1, rank=3)]
    assert [part_label(p, windows) for p in windows] == ["rank 3, window 0", "rank 3, window 1"]
    assert [part_label(p, attempts) for p in attempts] == ["rank 3, attempt 0", "rank 3, attempt 1"]
    assert [part_label(p, twins) for p in twins] == ["rank 3, part 0", "rank 3, part 1"]
    assert part_label(Part(ordinal=4), []) == "part 4"


def test_basis_says_clock_and_steps():
    assert basis(build.eight_ranks()) == "Device time of step 10"
    assert basis(build.two_gloo()).replace("\u00a0", " ") == "Host time per step, mean of 5 steps (5 to 9)"

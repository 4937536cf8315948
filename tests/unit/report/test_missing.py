from dataclasses import replace

from dtprof.report.facts import QualityRow
from dtprof.report.missing import missing
from tests.unit.report import build


def by_source(facts):
    return {row.source: row for row in missing(facts)}


def test_equal_rows_of_all_ranks_are_one_line():
    row = by_source(build.eight_ranks())["clock"]
    assert (row.ranks, row.count) == ("all", "8,028")


def test_rows_of_some_ranks_name_them():
    rows = [QualityRow(r, r, "kernels", "launch not in the file", 64, "step not known") for r in (1, 3)]
    row = by_source(replace(build.eight_ranks(), quality=tuple(rows)))["kernels"]
    assert (row.ranks, row.who, row.count) == ("1, 3", "ranks 1, 3", "64 + 64")


def test_files_of_several_ranks_are_named_once():
    rows = [QualityRow(r, r, f"rank{r}.json", "cut off", 1, "the end is missing") for r in range(5)]
    facts = replace(build.eight_ranks(), quality=tuple(rows))
    last = missing(facts)[-1]
    assert (last.source, last.ranks, last.count) == ("rank0.json and 4 more", "0 to 4", "5")


def test_no_cell_is_ever_empty_or_a_dash():
    nameless = QualityRow(0, None, "", "odd", None, "")
    for name in build.ALL:
        facts = replace(build.ALL[name](), quality=(nameless,))
        for row in missing(facts):
            assert all(cell.strip(" -–—") for cell in (row.ranks, row.source, row.what, row.count, row.effect))


def test_absent_ranks_are_named_with_what_they_cost():
    row = by_source(build.eight_ranks(range(3)))["ranks"]
    assert row.ranks == "3 to 7"
    assert row.what == "5 of 8 ranks are not in the set"
    assert "upper bounds" in row.effect


def test_one_incomplete_step_is_said():
    assert "ends inside step 10" in by_source(build.eight_ranks())["steps"].what


def test_no_steps_are_said():
    assert by_source(build.nothing())["steps"].what == "No step is marked"


def test_a_complete_run_with_known_cost_misses_nothing():
    assert missing(build.two_gloo()) == []


def test_unreliable_parts_and_ungrouped_communication():
    facts = build.eight_ranks()
    parts = (replace(facts.accounting.parts[0], unreliable="119 graph launches have no kernels"), *facts.accounting.parts[1:])
    facts = replace(
        facts,
        accounting=replace(facts.accounting, parts=parts),
        comm=replace(facts.comm, ungrouped_share={2: 0.25, 3: 0.0}),
    )
    rows = by_source(facts)
    assert rows["accounting"].who == "rank 0"
    assert rows["collectives"].who == "rank 2"
    assert rows["collectives"].what.startswith("25%")

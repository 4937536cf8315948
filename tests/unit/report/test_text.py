import io
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from dtprof.analyse.results import ACCOUNTING
from dtprof.findings import Verdict
from dtprof.numbers import Scale
from dtprof.report import text_bars
from dtprof.report.budget import budget
from dtprof.report.palette import PARTS
from dtprof.report.text import print_report, render
from dtprof.report.text_layout import Column, command, table, wrap
from tests.unit.report import build

FACTS = {name: make() for name, make in build.ALL.items()}


def plain(facts, width=100, colour=False):
    return "\n".join(line.plain for line in render(facts, width, colour))


@pytest.mark.parametrize("name", list(build.ALL))
@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("width", [40, 41, 55, 60, 72, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(name, colour, width):
    for line in render(FACTS[name], width, colour):
        assert line.cell_len <= width, line.plain


def test_wide_terminals_are_used_up_to_120_cells():
    assert max(line.cell_len for line in render(FACTS["eight"], 300, False)) <= 120


def test_three_lines_come_first():
    lines = [line.plain for line in render(FACTS["gloo"], 120, False)]
    assert lines[0].startswith("step 76.3 ms")
    assert lines[1].startswith("VERDICT  13% of the step")
    assert lines[2].startswith("WHY      rank 1 computes")
    assert [line.split()[0] for line in lines if line[:9].strip()][3] == "NEXT"


@pytest.mark.parametrize("name", list(build.ALL))
def test_no_other_capitals(name):
    shouted = set(re.findall(r"\b[A-Z]{4,}\b", plain(FACTS[name])))
    assert shouted <= {"VERDICT", "NEXT", "CUDA", "SXM2", "JSON"}


@pytest.mark.parametrize("name", list(build.ALL))
def test_nothing_is_a_bare_dash_or_empty(name):
    for line in plain(FACTS[name]).splitlines():
        assert not re.search(r"(^|\s)(-|–|—|None|nan)(\s|$)", line.replace("- idle", "")), line


def test_the_text_can_be_searched_with_plain_spaces():
    assert "\u00a0" not in plain(FACTS["eight"])
    assert "costs 4.40 ms per step" in plain(FACTS["eight"])


def test_key_names_every_part_that_occurs():
    text = plain(FACTS["gloo"])
    for entry in ("c compute 65%", "w waiting 13%", "m moving data 20%", "i idle: input 1.4%"):
        assert entry in text


def test_partial_set_says_why_waits_are_not_known():
    text = plain(FACTS["three"])
    assert "u communication, not split" in text
    assert "≤ 86" in text
    assert "3 of 8 ranks" in text
    assert "5 of 8 ranks are not in the set" in text


def test_many_ranks_are_summarised():
    text = plain(FACTS["many"])
    assert "61 of 64 ranks lie between these" in text
    assert "shortest, culprit" in text
    assert "22 are not shown" in text


def test_without_steps_the_report_says_what_to_do():
    assert "Mark steps with prof.step()" in plain(FACTS["nothing"])
    assert "None. What this report could not see" in plain(FACTS["nothing"])


@pytest.mark.parametrize("width", [40, 80, 120])
def test_letter_bars_are_as_long_as_their_step(width):
    rows = budget(FACTS["eight"])
    per_ns = width / max(r.total for r in rows)
    for row in rows:
        bar = text_bars.letters(row.parts, per_ns).plain
        assert len(bar) == round(row.total * per_ns)
        for key in ACCOUNTING:
            assert abs(bar.count(PARTS[key].letter) - row.parts[key] * per_ns) <= 1


PARTS_NS = st.dictionaries(st.sampled_from(ACCOUNTING), st.integers(0, 10**9), max_size=10)


@given(PARTS_NS, st.integers(1, 120))
@settings(max_examples=200)
def test_coloured_bars_fill_their_cells_exactly(parts, width):
    total = sum(parts.values())
    per_ns = width / max(total, 1)
    bar = text_bars.blocks(parts, per_ns, Scale.of([total]), True)
    assert bar.cell_len == (-(-round(total * per_ns * 8) // 8))
    edges = text_bars.edges(parts, per_ns, 8)
    assert all(a[2] == b[1] for a, b in pairwise(edges))


def test_letters_are_all_different():
    assert len({style.letter for style in PARTS.values()}) == len(PARTS)


def test_print_writes_colour_only_when_asked():
    grey, bright = io.StringIO(), io.StringIO()
    print_report(FACTS["eight"], grey, 80, False)
    print_report(FACTS["eight"], bright, 80, True)
    assert "\x1b[" not in grey.getvalue()
    assert "\x1b[" in bright.getvalue()
    assert "VERDICT" in grey.getvalue()


def test_markup_in_names_is_not_interpreted():
    facts = replace(FACTS["gloo"], verdict=Verdict("h", "a [bold]name[/bold] [/]", "why [red]", ("next [x]",)))
    out = io.StringIO()
    print_report(facts, out, 100, False)
    assert "a [bold]name[/bold] [/]" in out.getvalue()


@given(st.text(alphabet="abc \u00a0日é", max_size=80), st.integers(4, 40))
def test_wrapping_loses_nothing_and_never_exceeds(text, width):
    lines = wrap(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split(" ")) == "".join(text.split(" "))


def test_wrapping_keeps_number_and_unit_together():
    assert wrap("it takes 7.63\u00a0ms here", 11) == ["it takes", "7.63\u00a0ms", "here"]


def test_wrapped_commands_can_be_pasted():
    words = "dtprof job ddp --ranks 2 --inject slow_rank=1:20ms --out runs/0007"
    lines = command(words, 30)
    assert len(lines) > 1
    assert all(cell_len(line) <= 30 for line in lines)
    assert " ".join("\n".join(lines).replace("\\\n", " ").split()) == words
    assert command(words, 100) == [words]


def test_tables_give_up_their_least_columns_first():
    columns = [
        Column("name", ["a very long name indeed"], right=False, flexible=True),
        Column("kept", ["12345"]),
        Column("first to go", ["1234567890"], goes=2),
        Column("second", ["1234567"], goes=1),
    ]
    heads = {width: table(columns, width, least=10)[0].plain for width in (80, 28, 20)}
    assert "first to go" in heads[80]
    assert "first to go" not in heads[28]
    assert "second" in heads[28]
    assert "second" not in heads[20]
    assert all(line.cell_len <= 20 for line in table(columns, 20, least=10))

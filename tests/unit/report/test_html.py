import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest

from dtprof.findings import Evidence, Verdict
from dtprof.report.html import page, style
from dtprof.report.palette import PARTS, SURFACE, tokens
from tests.unit.report import build

VOID = {"meta", "br", "link", "img", "hr", "input"}
PAGES = {name: page(make()) for name, make in build.ALL.items()}
SECTIONS = [
    "Where the step goes",
    "Side by side in time",
    "Findings",
    "Kernels",
    "What this report could not see",
    "The numbers",
]


class Balanced(HTMLParser):
    """Every tag that opens closes, in order; collects text and attributes."""

    def __init__(self, source):
        super().__init__()
        self.open, self.text, self.attributes = [], [], []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, k, v) for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, k, v) for k, v in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text.append(data)


@pytest.mark.parametrize("name", list(PAGES))
def test_tags_are_balanced_and_sections_keep_their_places(name):
    parsed = Balanced(PAGES[name])
    heads = re.findall(r"<h2>([^<]*)</h2>", PAGES[name])
    assert [head for head in heads if head in SECTIONS] == SECTIONS
    text = " ".join(parsed.text)
    assert text.index("VERDICT") < text.index("WHY") < text.index("NEXT") < text.index(SECTIONS[0])


@pytest.mark.parametrize("name", list(PAGES))
def test_pages_ask_nobody_for_anything(name):
    for tag, key, value in Balanced(PAGES[name]).attributes:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed")
        assert not key.startswith("on")
        if key in ("src", "href"):
            assert value.startswith("#"), value
        assert "http" not in (value or "")
    assert "@import" not in PAGES[name]
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", PAGES[name]))


@pytest.mark.parametrize("name", list(PAGES))
def test_ids_are_unique_and_references_resolve(name):
    attributes = Balanced(PAGES[name]).attributes
    ids = [v for _, k, v in attributes if k == "id"]
    assert len(ids) == len(set(ids))
    wanted = {v[1:] for _, k, v in attributes if k == "href"} | set(re.findall(r"url\(#([^)]*)\)", PAGES[name]))
    assert wanted <= set(ids)


@pytest.mark.parametrize("name", list(PAGES))
def test_colours_are_variables_of_both_themes(name):
    used = set(re.findall(r"var\(--([a-z-]+)\)", PAGES[name]))
    assert used <= tokens(False).keys()
    assert tokens(False).keys() == tokens(True).keys()


def test_no_cell_is_empty_but_in_totals():
    for source in PAGES.values():
        for row in re.findall(r"<tr(?! class=\"tot\")>.*?</tr>", source, re.S):
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S):
                assert re.sub(r"<title>.*?</title>|<[^>]*>", "", cell).strip() or "<svg" in cell, row
                assert cell.strip() not in ("-", "–", "—", "None", "nan")


def test_sizes_are_bounded():
    assert len(PAGES["eight"]) < 2_000_000
    assert len(page(build.many_ranks(512, 60))) < 2_000_000


def test_themes_hold_light_dark_and_print():
    css = style()
    assert "@media (prefers-color-scheme:dark)" in css
    assert css.count(f"--page:{SURFACE['page'][0]}") == 2
    assert css.count(f"--page:{SURFACE['page'][1]}") == 1
    assert css.count(f"--wait:{PARTS['comm_wait_ns'].light}") == 2


def test_everything_that_comes_from_a_trace_is_escaped():
    evil = '<script>alert(1)</script>"&'
    facts = build.eight_ranks()
    finding = replace(build.LATE, title=evil, rule=evil, apply=evil, verify=f"dtprof report {evil}", evidence=(Evidence(evil),))
    operation = replace(facts.comm.operations[0], op=evil, label=evil, group=evil)
    kernels = replace(facts.kernels, rows=(replace(facts.kernels.rows[0], name=evil),), classes={evil: 1})
    quality = tuple(replace(q, source=evil, what=evil, effect=evil) for q in facts.quality)
    part = msgspec.structs.replace(facts.run.parts[0], device=evil)
    manifest = msgspec.structs.replace(facts.run.manifest, parts=[part, *facts.run.parts[1:]])
    facts = replace(
        facts,
        run=build.Run(manifest, facts.run.store, f"/data/{evil.replace('/', '')}", "kineto"),
        findings=(finding,),
        comm=replace(facts.comm, operations=(operation, *facts.comm.operations[1:])),
        kernels=kernels,
        quality=quality,
        verdict=Verdict(evil, f"39% {evil} waiting {evil}", evil, (evil,), (evil,)),
    )
    source = page(facts)
    assert not any(tag == "script" for tag, _, _ in Balanced(source).attributes)
    assert "<script" not in source
    assert source.count("&lt;script&gt;") >= 12


def test_verdict_is_emphasised_up_to_its_word():
    assert '<span class="w">39% of the step (mean of 8 ranks) is waiting</span> for a late rank' in PAGES["eight"]


def test_commands_stand_in_boxes_and_code_in_code():
    assert '<span class="cmd">dtprof report /data/dlrm_8rank --html report.html</span>' in PAGES["eight"]
    assert '<span class="cmd">dtprof job ddp --ranks 2</span>' in PAGES["gloo"]
    assert "<code>torch.compile(mode=&quot;reduce-overhead&quot;)</code>" in PAGES["eight"]


def test_costs_share_one_unit():
    assert re.findall(r"<i>costs</i> ([^<]*)", PAGES["eight"]) == ["4.40\u00a0ms", "≤ 7.11\u00a0ms", "not known"]


def test_numbers_are_exact_in_titles():
    facts = build.eight_ranks()
    for account in facts.accounting.parts:
        assert f'title="{account.steps[0].dur_ns:,} ns"' in PAGES["eight"]


def test_at_most_twenty_operations_and_the_rest_counted():
    assert PAGES["many"].count('<td class="n idx">') == 20
    assert "The 20 with the most waiting of 30; the other 10 are in the JSON only." in PAGES["many"]


def test_partial_sets_show_bounds_and_reasons():
    source = PAGES["three"]
    assert "not known<br>3 of 8 ranks" in source
    assert "≤ 10\u00a0us" in source
    assert "arrives last" not in source


def test_top_ten_kernels_and_other():
    assert PAGES["eight"].count("vectorized_elementwise_kernel") == 20
    assert "other: 4 names" in PAGES["eight"]


def test_a_run_without_findings_says_so():
    assert "✓ none" in PAGES["nothing"]


def test_a_run_without_steps_shows_the_whole_capture():
    assert "time of the whole capture" in PAGES["nothing"]
    assert "<code>prof.step()</code>" in PAGES["nothing"]

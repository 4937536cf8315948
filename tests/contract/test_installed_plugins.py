"""Every plugin that is installed, ours included, keeps to its protocol on input that is empty, damaged or odd."""

import argparse
import re

import pytest

from dtprof.advise import findings, verdict
from dtprof.analyse import study_of
from dtprof.cli.plugins import built_in
from dtprof.findings import SEVERITIES
from dtprof.plugins import GROUPS, loaded
from dtprof.protocols import Collector
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.schema import TABLES
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched

INSTALLED = [*built_in(), *(plugin for group in GROUPS for plugin in loaded(group))]
JUNK = (b"", b"{", b"\x00\xff\xfe", b"[]\n{}\n7\nnull\n", b'{"type": "grads"}\n{"step": "x"}\n', b"%PDF-1.7\n")


def of(group):
    return [pytest.param(p, id=p.name) for p in INSTALLED if p.group == group]


def made(plugin):
    """An object of a plugin, whether it is announced as a class or is one already."""
    return plugin.value() if isinstance(plugin.value, type) else plugin.value


@pytest.mark.parametrize("plugin", INSTALLED, ids=lambda p: f"{p.group}:{p.name}")
def test_it_loads(plugin):
    assert plugin.error == ""
    assert plugin.package
    assert re.fullmatch(r"[a-z][a-z0-9_.]*", plugin.name)


def test_no_two_plugins_of_a_group_share_a_name():
    names = [(p.group, p.name) for p in INSTALLED]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plugin", of("collectors"))
def test_a_collector_has_both_halves_and_its_own_name(plugin):
    collector = made(plugin)
    assert isinstance(collector, Collector)
    assert collector.name == plugin.name


@pytest.mark.parametrize("plugin", of("collectors"))
def test_a_collector_that_was_never_started_can_be_stopped(plugin):
    made(plugin).stop()


@pytest.mark.parametrize("plugin", of("collectors"))
def test_a_collector_reads_an_empty_folder_as_nothing(plugin, tmp_path):
    tables = made(plugin).tables(tmp_path)
    assert set(tables) <= set(TABLES)
    assert all(len(table) == 0 for table in tables.values())


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
@pytest.mark.parametrize("plugin", of("collectors"))
def test_a_collector_reads_junk_without_raising(plugin, junk, tmp_path):
    for name in ("ddp.jsonl", "collectives.jsonl", "host.jsonl", "steps.jsonl", "trace.json.gz"):
        (tmp_path / name).write_bytes(junk)
    for name, table in made(plugin).tables(tmp_path).items():
        assert table.spec.name == name


@pytest.mark.parametrize("plugin", of("readers"))
def test_a_reader_sniffs_anything_without_raising(plugin, tmp_path):
    reader = made(plugin)
    assert reader.name == plugin.name
    assert not reader.sniff(tmp_path / "absent")
    assert not reader.sniff(tmp_path)
    for i, junk in enumerate(JUNK):
        (tmp_path / f"{i}.json").write_bytes(junk)
        assert not reader.sniff(tmp_path / f"{i}.json")
    assert not reader.sniff(tmp_path)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("plugin", of("analyses"))
def test_an_analysis_answers_for_every_shape(plugin, name):
    study_of(matched(SHAPES[name]())).result(plugin.name)


@pytest.mark.parametrize("plugin", of("analyses"))
@pytest.mark.parametrize("parts", [[], [Part(ordinal=0)], [Part(ordinal=0, rank=0), Part(ordinal=1, rank=0)]], ids=len)
def test_an_analysis_answers_where_nothing_is_known(plugin, parts):
    study_of(Run(Manifest(parts=parts), MemoryStore({}), "nothing", "kineto")).result(plugin.name)


@pytest.mark.parametrize("plugin", of("rules"))
def test_a_rule_finds_nothing_in_nothing(plugin):
    rule = made(plugin)
    assert rule.id == plugin.name
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", rule.id)
    for parts in ([], [Part(ordinal=0, rank=0), Part(ordinal=1, rank=1)]):
        study = study_of(Run(Manifest(parts=parts), MemoryStore({}), "nothing", "kineto"))
        assert list(rule.find(study)) == []


@pytest.mark.parametrize("name", SHAPES)
def test_findings_are_whole_and_point_at_events(name):
    study = study_of(matched(SHAPES[name]()))
    for finding in findings(study):
        assert finding.severity in SEVERITIES
        assert set(finding.ranks) <= set(study.run.ranks)
        assert all((finding.title, finding.why, finding.next, finding.apply, finding.verify, finding.evidence))
        assert finding.seconds_per_step is None or finding.seconds_per_step > 0
        assert finding.prediction is None
        for evidence in finding.evidence:
            for part, rows in evidence.events.items():
                assert all(0 <= row < len(study.run.table("events", part)) for row in rows)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_a_verdict(name):
    told = verdict(study_of(matched(SHAPES[name]())))
    assert all((told.header, told.verdict, told.why, told.next))


@pytest.mark.parametrize("plugin", of("commands"))
def test_a_verb_describes_itself(plugin):
    from dtprof.cli.parser import find_command

    command = find_command(plugin.name)
    assert command.name == plugin.name
    assert command.summary
    parser = argparse.ArgumentParser(prog=f"dtprof {plugin.name}")
    parser.add_argument("--json", action="store_true")
    command.configure(parser)
    assert plugin.name in parser.format_help()

"""Every installed collector keeps the contract of ``dtprof.protocols.Collector``."""

import inspect
import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dtprof.plugins import announced, load
from dtprof.protocols import Collector, Context
from dtprof.schema import TABLES
from dtprof.table import Table
from dtprof.testing import check_collector

PLUGINS = [load(entry, "collectors") for entry in announced("collectors")]
NAMES = [p.name for p in PLUGINS]
RAW = {
    "torch_profiler": ["trace.json.gz"],
    "ddp": ["ddp.jsonl", "collectives.jsonl"],
    "host": ["host.jsonl"],
    "compile": ["compile.jsonl"],
    "memory": ["memory.jsonl"],
    "nvml": ["nvml.jsonl"],
    "flight_recorder": ["flight_recorder.json"],
    "nccl_inspector": ["nccl_inspector.jsonl"],
    "nccl_debug": ["nccl_debug.log"],
}


@pytest.fixture(params=PLUGINS, ids=NAMES)
def plugin(request):
    return request.param


def context(folder, capture=(1, 3), first=0):
    return Context(rank=0, world_size=1, folder=folder, capture=capture, options={}, first_step=first)


def test_our_own_collectors_are_installed():
    assert {"torch_profiler", "ddp", "host"} <= set(NAMES)


def test_it_loads_and_is_a_collector(plugin):
    assert plugin.error == ""
    made = plugin.value()
    assert isinstance(made, Collector)
    assert made.name == plugin.name


def test_its_module_describes_its_raw_files(plugin):
    text = inspect.getdoc(sys.modules[plugin.value.__module__])
    assert re.search(r"^Raw files?\b", text, re.MULTILINE)
    for name in RAW.get(plugin.name, []):
        assert name in text


def test_it_keeps_the_contract_that_third_parties_are_held_to(plugin):
    pytest.importorskip("torch")
    check_collector(plugin.value)


@pytest.mark.parametrize("capture", [(1, 3), (0, 2), (-1, -1), (100, 102)])
def test_it_runs_without_a_process_group_and_writes_only_into_its_folder(plugin, tmp_path, monkeypatch, capture):
    pytest.importorskip("torch")
    folder, elsewhere = tmp_path / "part00000", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    made = plugin.value()
    made.start(context(folder, capture))
    for step in range(5):
        made.on_step(step)
    made.stop()
    assert {p.name for p in folder.iterdir()} <= set(RAW.get(plugin.name, [p.name for p in folder.iterdir()]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["elsewhere", "part00000"]
    assert list(elsewhere.iterdir()) == []
    check(made.tables(folder))


def test_it_may_be_stopped_before_it_started_and_twice(plugin, tmp_path):
    made = plugin.value()
    made.stop()
    made.start(context(tmp_path, (-1, -1)))
    made.on_step(0)
    made.stop()
    made.stop()


def test_an_empty_folder_gives_no_rows(plugin, tmp_path):
    for table in plugin.value().tables(tmp_path).values():
        assert len(table) == 0


LINES = (
    '{"type":"config","model":0,"parameters":[["a",4,"float32"]]}',
    '{"type":"layout","model":0,"step":1,"rebuilt":true,"buckets":[{"bucket":0,"bytes":4,"members":["a"]}]}',
    '{"type":"grads","model":0,"step":1,"ready":[[0,5]],"unused":[],"join":false,"sync":true}',
    '{"type":"ready","model":0,"step":2,"first":3,"buckets":[4],"join":false,"sync":true}',
    '{"type":"ready","model":0,"step":0,"first":3,"buckets":[4,null],"join":false,"sync":true}',
    '{"type":"grads","model":9,"step":1,"ready":[[0,5]]}',
    '{"type":"grads","model":0,"step":2,"ready":[[7,5],[0]]}',
    '{"type":"grads","model":0}',
    '{"type":"layout","model":0}',
    '{"type":"config"}',
    '{"type":"config","model":[]}',
    '{"step":1,"op":"all_reduce","bytes_in":4,"created_ns":6}',
    '{"step":3,"ts":7,"process_cpu_ns":1,"pauses":[[1,2,0],[1]]}',
    '{"step":"x","ts":"y","gc_ns":null}',
    '{"type":"counters","step":1,"ts":5,"rss":4096,"ooms":1}',
    '{"type":"state","step":1,"ts":5,"rows":[["parameter",null,-1,4],["activation","a",0,7]]}',
    '{"type":"grown","step":1,"ts":5,"rows":[["a",0,4],["a"]]}',
    "{}", "[]", '"', "{", "\xff", "",
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.sampled_from(LINES), max_size=12), cut=st.integers(0, 30))
def test_what_a_killed_job_left_is_read_or_counted(plugin, tmp_path, lines, cut):
    data = "\n".join(lines).encode("latin-1")
    data = data[: max(len(data) - cut, 0)]
    for name in RAW.get(plugin.name, []):
        (tmp_path / name).write_bytes(data)
    check(plugin.value().tables(tmp_path))


def check(tables):
    for name, table in tables.items():
        assert name in TABLES
        assert TABLES[name].scope == "part"
        assert isinstance(table, Table)
        for i in range(len(table)):
            table.row(i)

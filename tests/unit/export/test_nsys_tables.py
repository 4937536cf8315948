"""The sqlite and Parquet that we write, by plain SQL."""

import json
import sqlite3

import pyarrow.parquet as pq
import pytest

from dtprof.export.common import clock_zero
from dtprof.export.nsys import NsysExporter, schema
from dtprof.export.nsys.names import short_name, sync_type
from dtprof.run import Run
from tests.unit.export.samples import NAMES, hostile
from tests.unit.shapes import SHAPES
from tests.unit.shapes.build import matched


@pytest.fixture
def written(tmp_path):
    """``written(run)``: one open database per part, in the order of parts."""
    opened = []

    def write(run):
        NsysExporter().write(run, tmp_path)
        opened.extend(sqlite3.connect(p) for p in sorted(tmp_path.glob("*.sqlite")))
        return opened

    yield write
    for database in opened:
        database.close()


def one(database, query, *values):
    return database.execute(query, values).fetchone()[0]


def test_a_report_is_whole(written, tmp_path):
    (database,) = written(SHAPES["cuda_graph"]().run)
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    assert set(schema.TABLES) <= tables
    assert one(database, "PRAGMA journal_mode") == "delete"
    assert one(database, "PRAGMA integrity_check") == "ok"
    for name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        assert one(database, f"SELECT value FROM {name} WHERE name = 'EXPORT_SCHEMA_VERSION'") == "3.24.0"
    assert one(database, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == 0
    (report,) = tmp_path.glob("*.nsys-rep")
    assert report.stat().st_size == 0
    assert report.stat().st_mtime_ns <= report.with_suffix(".sqlite").stat().st_mtime_ns
    assert not list(tmp_path.glob(".*"))


def test_nothing_half_written_is_left_where_writing_fails(tmp_path, monkeypatch):
    NsysExporter().write(hostile(), tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.suffix != ".nsys-rep" and p.is_file()}
    monkeypatch.setattr("dtprof.export.nsys.own.write", lambda *args, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        NsysExporter().write(hostile(), tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.suffix != ".nsys-rep" and p.is_file()} == before


def test_every_number_of_an_enumeration_has_its_row(written):
    for database in written(hostile()):
        for table, column, enum in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind", "ENUM_CUDA_MEMCPY_OPER"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "srcKind", "ENUM_CUDA_MEM_KIND"),
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "dstKind", "ENUM_CUDA_MEM_KIND"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "launchType", "ENUM_CUDA_KERNEL_LAUNCH_TYPE"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "cacheConfig", "ENUM_CUDA_FUNC_CACHE_CONFIG"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass", "ENUM_NSYS_EVENT_CLASS"),
            ("NVTX_EVENTS", "eventType", "ENUM_NSYS_EVENT_TYPE"),
            ("TARGET_INFO_CUDA_STREAM", "flag", "ENUM_CUPTI_STREAM_TYPE"),
        ):
            assert one(database, f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM {enum})") == 0, column
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
            ("NVTX_EVENTS", "textId"),
            ("ThreadNames", "nameId"),
        ):
            query = f"SELECT count(*) FROM {table} WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT id FROM StringIds)"
            assert one(database, query) == 0, column


def test_names_are_what_they_were(written):
    first, _ = written(hostile())
    query = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY start"
    assert [name for (name,) in first.execute(query)][: len(NAMES)] == list(NAMES)


def test_communication_is_known_by_its_short_name(written):
    first, _ = written(hostile())
    query = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = shortName WHERE value LIKE 'nccl%'"
    assert one(first, query) == 1
    assert (
        one(first, "SELECT value FROM StringIds WHERE value LIKE 'nccl\\_%' ESCAPE '\\'") == "nccl_multimem_all_reduce_kernel"
    )
    domain = "SELECT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'NCCL'"
    payload = json.loads(one(first, f"SELECT jsonText FROM NVTX_EVENTS WHERE eventType = 59 AND domainId = ({domain})"))
    assert payload["Message size [bytes]"] == 4096
    assert (payload["Rank"], payload["No. of ranks"], payload["Ranks"]) == (0, 2, [0, 1])


def test_a_launch_and_its_work_join_by_process_and_number(written):
    first, _ = written(hostile())
    query = (
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON k.correlationId = r.correlationId AND k.globalPid = (r.globalTid & 0xFFFFFFFFFF000000)"
    )
    assert one(first, query) == len(NAMES) + 1


def test_calls_that_share_a_number_do_not_double_their_kernels(written):
    run = SHAPES["both_call_it_device_0"]().run
    events = run.table("events", 0)
    # every call has the number of the first one, as where an id is used again
    first = events["correlation"][events["correlation"] >= 0][0]
    changed = events.with_columns(correlation=[int(first) if c >= 0 else c for c in events["correlation"].tolist()])
    other = Run(run.manifest, Changed(run, changed), run.path, run.format)
    database = written(other)[0]
    query = (
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r"
        " ON k.correlationId = r.correlationId WHERE r.end <= k.start"
    )
    assert one(database, query) == one(database, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL") == 2


class Changed:
    """A run with other events in part 0."""

    def __init__(self, run, events):
        self.run, self.events = run, events

    def load(self, name, part):
        return self.events if (name, part) == ("events", 0) else self.run.table(name, part)


def test_ranks_lie_on_one_clock(written):
    run = hostile()
    zero = clock_zero(run)
    assert {p.ordinal: p.clock_offset_ns for p in run.parts} == {0: 0, 1: -400_000}
    first, second = written(run)
    starts = {one(d, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") for d in (first, second)}
    assert starts == {zero - 1000}
    ends = [one(d, "SELECT max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL") for d in (first, second)]
    assert ends[0] == ends[1]


def test_parquet_has_the_same_rows(written, tmp_path):
    first, _ = written(hostile())
    (folder, _) = sorted(tmp_path.glob("*_pqtdir"))
    for table, columns in schema.TABLES.items():
        file = pq.read_table(folder / f"{table}.parquet")
        assert file.column_names == list(columns)
        rows = [tuple(row.values()) for row in file.to_pylist()]
        assert rows == first.execute(f"SELECT * FROM {table}").fetchall(), table


def test_threads_have_numbers_of_their_own(written):
    first, _ = written(hostile())
    assert (
        one(first, "SELECT count(DISTINCT globalTid) FROM ThreadNames") == one(first, "SELECT count(*) FROM ThreadNames") == 2
    )
    assert one(first, "SELECT count(DISTINCT globalTid >> 24) FROM ThreadNames") == 1


def test_steps_without_a_range_become_ranges(written):
    database = written(matched(SHAPES["gloo_cpu"]()))[0]
    query = "SELECT end - start FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = 'ProfilerStep#0'"
    assert database.execute(query).fetchall() == [(600_000,)]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
            "vectorized_elementwise_kernel",
        ),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void (anonymous namespace)::softmax<float>(float*)", "softmax"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("", ""),
        ("<", "<"),
        ("(", "("),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_types_of_synchronisation():
    names = ("Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync", "what")
    assert [sync_type(n) for n in names] == [1, 2, 3, 4, 0]

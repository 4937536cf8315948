"""Files: gzip and what is left of it, what is no trace, folders of ranks, and what names say."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dtprof.errors import InputError, MissingExtra, NotATrace
from dtprof.ingest.kineto import damage as kinds
from dtprof.ingest.kineto import scan as scan_module
from dtprof.ingest.kineto.files import FileHint, find, hint_of, trace_files
from dtprof.ingest.kineto.scan import has_c, scan_file, sniff
from tests.unit.ingest.scan_lab import ENGINES, generated, records, scan, whole

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def text():
    return generated(random.Random(3), 3000, "kineto").text


def write(folder, name, data):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# ---- gzip


@pytest.mark.parametrize("engine", ENGINES)
def test_content_decides_about_gzip_not_the_name(tmp_path, text, engine):
    wanted = whole(scan(text, engine))
    members = gzip.compress(text[:5000]) + gzip.compress(text[5000:6000]) + gzip.compress(text[6000:])
    for name, data in (("a.json", text), ("b.json.gz", text), ("c.json", gzip.compress(text)), ("d.json.gz", members)):
        assert whole(scan_file(write(tmp_path, name, data), engine=engine)) == wanted, name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.99])
def test_a_cut_gzip_file_gives_all_it_holds(tmp_path, text, engine, share):
    data = gzip.compress(text)
    data = data[: int(share * len(data))]
    held = zlib.decompressobj(31).decompress(data)
    trace = scan_file(write(tmp_path, "cut.json.gz", data), engine=engine)
    assert records(trace) == records(scan(held, engine))
    assert len(trace.ts) > 0.5 * share * len(scan(text, engine).ts)
    whats = {d.what for d in trace.damage}
    assert whats == {kinds.GZIP_CUT, kinds.FLAWS[kinds.TRUNCATED]}


def test_a_wrong_check_at_the_end_costs_nothing(tmp_path, text):
    data = gzip.compress(text)
    for bad in (data[:-8] + b"\1\2\3\4" + data[-4:], data[:-4] + b"\1\2\3\4"):
        trace = scan_file(write(tmp_path, "a.json.gz", bad))
        assert records(trace) == records(scan(text, ENGINES[0]))
        assert [d.what for d in trace.damage] == [kinds.GZIP_CHECK]
        assert trace.damage[0].offset == len(text)


def test_a_file_cut_in_the_check_at_the_end(tmp_path, text):
    trace = scan_file(write(tmp_path, "a.json.gz", gzip.compress(text)[:-3]))
    assert records(trace) == records(scan(text, ENGINES[0]))
    assert [d.what for d in trace.damage] == [kinds.GZIP_CUT]


@pytest.mark.parametrize("tail", [b"\0" * 512, b"trailing", b"x", gzip.compress(b"", mtime=0)[:5]])
def test_bytes_after_the_gzip_data_cost_nothing(tmp_path, text, tail):
    trace = scan_file(write(tmp_path, "a.json.gz", gzip.compress(text) + tail))
    assert records(trace) == records(scan(text, ENGINES[0]))
    assert len(trace.damage) == 1


def test_damage_inside_gzip_keeps_what_comes_before(tmp_path, text):
    data = bytearray(gzip.compress(text))
    at = len(data) * 2 // 3
    data[at : at + 40] = b"\xff" * 40
    trace = scan_file(write(tmp_path, "a.json.gz", bytes(data)))
    intact = records(scan(text, ENGINES[0]))
    assert len([r for r in records(trace) if r in set(intact)]) > len(intact) // 3
    assert kinds.GZIP_BAD in {d.what for d in trace.damage}


def test_progress_counts_to_the_size_of_the_file(tmp_path, text):
    path = write(tmp_path, "a.json.gz", gzip.compress(text, 0))
    seen = []
    scan_file(path, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert len(seen) > 3
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_the_text_is_never_held_in_memory(tmp_path):
    """Chunks of a highly compressible file stay small."""
    from dtprof.ingest.kineto.chunks import CHUNK_BYTES, chunks
    from dtprof.ingest.kineto.collected import Notes

    path = write(tmp_path, "a.json.gz", gzip.compress(b" " * 50_000_000))
    sizes = [len(chunk) for chunk in chunks(path, Notes())]
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= CHUNK_BYTES


# ---- engines


def test_the_environment_switches_the_c_scanner_off(monkeypatch, tmp_path, text):
    monkeypatch.setenv("DTPROF_NO_C", "1")
    assert not has_c()
    used = []
    scanner = scan_module.PythonScanner
    monkeypatch.setattr(scan_module, "PythonScanner", lambda: used.append(1) or scanner())
    scan_file(write(tmp_path, "a.json", text))
    assert used == [1]
    monkeypatch.setenv("DTPROF_NO_C", "0")
    assert has_c() == ("c" in ENGINES)


def test_asking_for_a_scanner_that_was_not_built_says_how_to_get_it(monkeypatch, tmp_path, text):
    def gone(name):
        raise ImportError(name)

    monkeypatch.setattr(scan_module, "import_module", gone)
    with pytest.raises(MissingExtra, match="pip install"):
        scan_file(write(tmp_path, "a.json", text), engine="c")
    assert not has_c()
    assert scan_file(tmp_path / "a.json").events_total == 3000


@pytest.mark.skipif("c" not in ENGINES, reason="the C scanner was not built")
def test_c_scanners_run_side_by_side_in_threads(tmp_path, text):
    path = write(tmp_path, "a.json", text)
    wanted = records(scan(text, "c"))
    with ThreadPoolExecutor(4) as pool:
        for trace in pool.map(lambda _: scan_file(path, engine="c"), range(12)):
            assert records(trace) == wanted


@pytest.mark.skipif("c" not in ENGINES, reason="the C scanner was not built")
def test_one_c_scanner_refuses_misuse():
    from dtprof.ingest.kineto._scan import Scanner

    scanner = Scanner((("stream", 0, 2),), ("nccl",))
    with pytest.raises(TypeError, match="bytes"):
        scanner.feed("text")
    big = b'{"traceEvents": [' + b'{"ph": "X"}, ' * 2_000_000
    errors = []

    def feed():
        try:
            for _ in range(20):
                scanner.feed(big)
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=feed) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["the scanner is in use by another thread"]
    scanner.finish()
    with pytest.raises(RuntimeError, match="finished"):
        scanner.feed(b"")
    with pytest.raises(ValueError, match="too many"):
        Scanner(tuple((f"key {i}", 0, i) for i in range(65)), ())
    with pytest.raises(ValueError, match="too many"):
        Scanner((), ("x" * 40,))


# ---- what is no trace

OTHERS = {
    "empty": (b"", "empty"),
    "white space": (b" \n\n", "white space"),
    "a PDF": (b"%PDF-1.7\n%\xe2\xe3\n1 0 obj", "PDF"),
    "a page": (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "picture"),
    "a database": (b"SQLite format 3\0" + b"\0" * 100, "SQLite"),
    "a zip": (b"PK\x03\x04 trace", "zip"),
    "text": (b"step 1 loss 0.5\nstep 2 loss 0.4\n", "not JSON"),
    "someone's JSON": (b'{"model": {"layers": 12}, "optimizer": "adam"}', "traceEvents.*model, optimizer"),
    "an empty object": (b"{}", "traceEvents"),
    "a list": (b"[1, 2, 3]", "list without events"),
    "a list of objects": (b'[{"name": "a", "value": 1}, {"name": "b"}]', "list without events"),
    "an empty list": (b"[]", "list without events"),
    "JSON that is cut": (b'{"model": {"layers": 12}, "optim', "no event.*at byte"),
    "traceEvents of something else": (b'{"traceEvents": [{"id": 1}, {"id": 2}]}', "holds no event"),
    "traceEvents that is no list": (b'{"traceEvents": {"a": 1}}', "holds no event"),
    "zeros": (b"\0" * 1000, "not JSON"),
    "a number": (b"42", "not JSON"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, kind, engine, compress):
    data, says = OTHERS[kind]
    path = write(tmp_path, "x.json", gzip.compress(data) if compress else data)
    if compress and kind == "empty":
        says = "white space"
    with pytest.raises(NotATrace, match=says) as raised:
        scan_file(path, engine=engine)
    line = str(raised.value)
    assert line.startswith(str(path))
    assert "torch.profiler" in line
    assert "\n" not in line
    assert raised.value.exit_code == 3
    assert sniff(path) == (kind.startswith("traceEvents"))


def test_gzip_that_holds_nothing(tmp_path):
    path = write(tmp_path, "x.json.gz", b"\x1f\x8b\x08\x00garbage, no deflate at all")
    with pytest.raises(NotATrace, match="decompressed"):
        scan_file(path)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        scan_file(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="cannot be read"):
        scan_file(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        trace_files(tmp_path / "nowhere")
    assert not sniff(tmp_path / "nowhere.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_that_may_not_be_read(tmp_path, text):
    path = write(tmp_path, "a.json", text)
    path.chmod(0)
    with pytest.raises(InputError, match="permission"):
        scan_file(path)


def test_an_unfinished_file_with_no_whole_event_is_still_a_trace(tmp_path):
    trace = scan_file(write(tmp_path, "a.json", b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "na'))
    assert (trace.events_total, len(trace.damage)) == (0, 1)


# ---- recognising, folders

EVENT = b'{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1}'


def test_sniffing(tmp_path):
    big = json.dumps({"deviceProperties": [{"id": i, "name": "x" * 1000} for i in range(300)]})[:-1].encode()
    for name, data in {
        "object": b'{"traceEvents": [' + EVENT + b"]}",
        "array": b" [\n " + EVENT + b"]",
        "mark": b"\xef\xbb\xbf" + b'{"traceEvents": [' + EVENT + b"]}",
        "long header": big + b', "traceEvents": [' + EVENT + b"]}",
        "empty": b'{"traceEvents": []}',
        "cut": b'{"traceEvents": [' + EVENT[:20],
    }.items():
        assert sniff(write(tmp_path, name, data)), name
        assert sniff(write(tmp_path, name, gzip.compress(data))), name
    assert not sniff(write(tmp_path, "list", b'[{"name": "x", "value": 3}]'))
    assert not sniff(write(tmp_path, "far", b'{"a": "' + b"x" * 3_000_000 + b'", "traceEvents": []}'))


def test_a_folder_of_ranks(tmp_path):
    trace = b'{"traceEvents": [' + EVENT + b"]}"
    names = ["rank10.json", "rank2.json.gz", "deeper/rank_3.json", "trace.json.tmp"]
    for name in names:
        write(tmp_path, name, gzip.compress(trace) if name.endswith("gz") else trace)
    others = ["config.json", "deeper/results.json", "log.gz"]
    for name in others:
        write(tmp_path, name, b'{"lr": 0.1}')
    for name in ("notes.txt", ".hidden.json", "deeper/deepest/rank_4.json", ".cache/rank5.json"):
        write(tmp_path, name, trace)
    found = find(tmp_path)
    assert [str(p.relative_to(tmp_path)) for p in found.traces] == [
        "rank2.json.gz",
        "rank10.json",
        "trace.json.tmp",
        "deeper/rank_3.json",
    ]
    assert sorted(str(p.relative_to(tmp_path)) for p in found.passed_over) == sorted(others)
    assert trace_files(tmp_path) == list(found.traces)


def test_a_file_named_outright_is_not_questioned(tmp_path):
    path = write(tmp_path, "odd.txt", b"{}")
    assert trace_files(path) == [path]
    assert trace_files(write(tmp_path, "empty/notes.txt", b"").parent) == []


NAMES = {
    "worker3_step_12.1694128201557.pt.trace.json.gz": FileHint(rank=3, window_ns=1694128201557),
    "rank-3.json": FileHint(rank=3),
    "rank3_trace.json": FileHint(rank=3),
    "rank_12.json.gz": FileHint(rank=12),
    "rank0of8.json": FileHint(rank=0),
    "a100_rank3of8_allreduce.json.gz": FileHint(rank=3),
    "trace_rank_0007.json": FileHint(rank=7),
    "trace.rank=5.json": FileHint(rank=5),
    "Rank7.json": FileHint(rank=7),
    "n1_77.1764430000123456789.pt.trace.json": FileHint(host="n1", pid=77, window_ns=1764430000123456789),
    "n1.a.b_77.1764430000123456789.pt.trace.json.gz": FileHint(host="n1.a.b", pid=77, window_ns=1764430000123456789),
    "my_host_9.1694128201557.pt.trace.json": FileHint(host="my_host", pid=9, window_ns=1694128201557),
    "rank2_100.1764430000123456789.pt.trace.json": FileHint(rank=2, window_ns=1764430000123456789),
    "libkineto_activities_4711.json": FileHint(pid=4711),
    "libkineto_activities_4711_1764430000.json.gz": FileHint(pid=4711),
    "trace.json": FileHint(),
    "frank5.json": FileHint(),
    "step_12.json": FileHint(),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_hint_at_rank_host_process_and_window(name):
    assert hint_of(Path("/runs/x") / name) == NAMES[name]


def test_the_folder_may_name_the_rank():
    assert hint_of(Path("/runs/rank_4/trace.json")) == FileHint(rank=4)
    assert hint_of(Path("/runs/rank_4/rank5.json")) == FileHint(rank=5)
    handler = hint_of(Path("/runs/rank_4/host_9.1764430000123456789.pt.trace.json"))
    assert handler == FileHint(rank=4, host="host", pid=9, window_ns=1764430000123456789)

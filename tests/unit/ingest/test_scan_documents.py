"""What a whole document may look like, and how it is got back into step after damage; over both scanners."""

from __future__ import annotations

import json

import pytest

from dtprof.ingest.kineto import damage as kinds
from tests.unit.ingest.scan_lab import ENGINES, scan, text_of

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def event(name, ts=1, pid=1, **args):
    body = {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": 1, "ts": ts, "dur": 1, "args": args}
    return json.dumps(body)


A, B, C = event("a", 1), event("b", 2, stream=5), event("c", 3)


def names(trace):
    return text_of(trace.name)


def flaws(trace):
    whats = {text: number for number, text in enumerate(kinds.FLAWS)}
    return {whats.get(d.what, d.what): d.count for d in trace.damage}


SOUND = {
    "object": f'{{"traceEvents": [{A}, {B}, {C}]}}',
    "bare array": f"[{A},{B},{C}]",
    "no space": f'{{"traceEvents":[{A},{B},{C}]}}'.replace(": ", ":").replace(", ", ","),
    "space everywhere": f' \n {{ "traceEvents" \t: \r\n [ {A} , {B} \n, {C} ] }} \n\n',
    "pretty": json.dumps({"a": [1], "traceEvents": [json.loads(t) for t in (A, B, C)], "z": {}}, indent=8),
    "header before": f'{{"deviceProperties": [{{"id": 0, "name": "x"}}], "traceEvents": [{A}, {B}, {C}]}}',
    "header after": f'{{"traceEvents": [{A}, {B}, {C}], "deviceProperties": [{{"id": 0, "name": "x"}}], "traceName": "t"}}',
    "byte order mark": f'\ufeff{{"traceEvents": [{A}, {B}, {C}]}}',
}


@pytest.mark.parametrize("layout", SOUND)
def test_layouts(engine, layout):
    trace = scan(SOUND[layout].encode(), engine)
    assert names(trace) == ["a", "b", "c"]
    assert trace.args["stream"].rows.tolist() == [1]
    assert trace.damage == []


def test_an_empty_array_is_an_empty_trace(engine):
    trace = scan(b'{"schemaVersion": 1, "traceEvents": [ ], "displayTimeUnit": "ms"}', engine)
    assert (len(trace.ts), trace.events_total, trace.damage) == (0, 0, [])
    assert trace.header == {"schemaVersion": 1, "displayTimeUnit": "ms"}


def test_the_header_is_everything_beside_the_events(engine):
    before = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 3, "pg_config": [{"ranks": [0, 1]}]},
        "x": None,
        "deviceProperties": [],
    }
    after = {"traceName": "/tmp/é.json", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1711964646000000000, "trace_id": "0"}
    text = json.dumps(before)[:-1] + f', "traceEvents": [{A}], ' + json.dumps(after)[1:]
    trace = scan(text.encode(), engine)
    assert trace.header == before | after
    assert (names(trace), trace.damage) == (["a"], [])


def test_a_header_that_is_only_nearly_json(engine):
    header = b'"a": [1, 2,], "b": {"bandwidth": inf}, "c": "bad \xff", "d": "line\nbreak", "e": -Infinity, "f": 007, '
    trace = scan(b"{" + header + f'"traceEvents": [{A}]}}'.encode(), engine)
    assert names(trace) == ["a"]
    assert trace.header["c"] == "bad \ufffd"
    assert trace.header["d"] == "line\nbreak"
    assert set(trace.header) == set("abcdef")


def test_two_arrays_of_events_are_both_read(engine):
    trace = scan(f'{{"traceEvents": [{A}], "traceName": "x", "traceEvents": [{B}, {C}]}}'.encode(), engine)
    assert names(trace) == ["a", "b", "c"]
    assert flaws(trace) == {kinds.AGAIN: 1}


BROKEN = {
    # what stands for event b: it is lost, a and c are kept, and one thing is said
    "missing closing braces": B[:-2],
    "missing closing brace": B[:-1],
    "missing opening brace of args": B.replace('"args": {', '"args": '),
    "missing quote after a name": B.replace('"b"', '"b'),
    "missing quote before a name": B.replace('"b"', 'b"'),
    "missing quote after a key": B.replace('"pid"', '"pid'),
    "unescaped quotes": B.replace('"b"', '"void f<"x">(y)"'),
    "unescaped quote at the end": B.replace('"b"', '"b""'),
    "missing colon": B.replace('"pid":', '"pid"'),
    "missing comma": B.replace(', "pid"', ' "pid"'),
    "two commas": B.replace(', "pid"', ',, "pid"'),
    "backslash before the closing quote": B.replace('"b"', '"b\\"'),
    "an unclosed list": B.replace('{"stream"', '{"grid": [1, 2, "stream"'),
    "a list closed as an object": B.replace("5", "[5}"),
    "a word": B.replace("5", "five"),
    "a comment": B.replace("5", "5 // five"),
    "half an event": B[: len(B) // 2],
    "only a brace": "{",
    "an event inside": B.replace('{"stream"', '{"x": [' + A.replace('"a"', '"inner"') + '], "stream"'),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("bare", [False, True])
def test_a_broken_event_costs_itself(engine, kind, bare):
    text = f"[{A}, {BROKEN[kind]}, {C}]" if bare else f'{{"traceEvents": [{A}, {BROKEN[kind]}, {C}], "traceName": "t"}}'
    trace = scan(text.encode(), engine)
    assert [n for n in names(trace) if n != "inner"] == ["a", "c"]
    assert flaws(trace).get(kinds.BROKEN) == 1
    assert trace.damage[0].offset == text.index(BROKEN[kind], text.index(A) + len(A))
    if not bare:
        assert trace.header["traceName"] == "t"


HARMLESS = {
    # between the events: nothing is lost
    "two commas": ", ,",
    "no comma": " ",
    "words": ", what is this, ",
    "a number": ", 12.5, ",
    "a text": ', "text", ',
    "a quote": ', " ',
    "a brace": ", } ",
    "an open brace": ", { ",
    "a bracket": "], ",
    "an open bracket": ", [ ",
    "zeros": "\0\0\0",
    "a list": ", [1, [2]], ",
    "null": ", null, ",
    "a line of log": "\n[W1129 12:00:00 profiler.cpp:1] \"warning\"\n, ",
    "the key again": ', "traceEvents": [ ',
}  # fmt: skip


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("bare", [False, True])
def test_what_stands_between_events_costs_nothing(engine, kind, bare):
    text = f"[{A}{HARMLESS[kind]}{B}, {C}]" if bare else f'{{"traceEvents": [{A}{HARMLESS[kind]}{B}, {C}], "traceName": "t"}}'
    trace = scan(text.encode(), engine)
    assert names(trace) == ["a", "b", "c"]
    assert trace.damage


@pytest.mark.parametrize("where", ["{A},{B},{C},", "{A},{B},{C} , "])
def test_a_trailing_comma(engine, where):
    trace = scan(f'{{"traceEvents": [{where.format(A=A, B=B, C=C)}]}}'.encode(), engine)
    assert (names(trace), flaws(trace)) == (["a", "b", "c"], {kinds.COMMA: 1})
    trace = scan(f'{{"traceEvents": [{A}, {B[:-2]},}},}}, {C}]}}'.encode(), engine)
    assert (names(trace), flaws(trace)) == (["a", "b", "c"], {kinds.COMMA: 1})


def test_two_events_run_together_are_lost_but_not_mixed(engine):
    merged = A[: A.index(', "dur"')] + B[B.index(', "name"') :]
    trace = scan(f'{{"traceEvents": [{merged}, {C}]}}'.encode(), engine)
    assert (names(trace), flaws(trace)) == (["c"], {kinds.TWICE: 1})


@pytest.mark.parametrize("cut", range(0, 400, 3))
def test_a_file_cut_anywhere_gives_its_whole_prefix(engine, cut):
    text = f'{{"schemaVersion": 1, "traceEvents": [{A}, {B}, {C}], "traceName": "t"}}'
    ends = [text.index(e) + len(e) for e in (A, B, C)]
    cut = min(cut, len(text) - 1)
    trace = scan(text[:cut].encode(), engine)
    assert names(trace) == ["a", "b", "c"][: sum(end <= cut for end in ends)]
    assert flaws(trace) == ({kinds.TRUNCATED: 1} if cut else {})


def test_a_file_that_ends_in_zeros(engine):
    trace = scan(f'{{"traceEvents": [{A}, {B}, {C[:40]}'.encode() + b"\0" * 100_000, engine)
    assert names(trace) == ["a", "b"]
    assert trace.damage


DAMAGED_HEADERS = {
    "a quote": '"deviceProperties": [{"id": 0, "name": "NVI"DIA"}], ',
    "no comma": '"schemaVersion": 1 "deviceProperties": [] ',
    "an unclosed list": '"deviceProperties": [{"id": 0}, ',
    "a word": '"schemaVersion": one, ',
    "no value": '"schemaVersion": , ',
    "no key": "1, ",
}


@pytest.mark.parametrize("kind", DAMAGED_HEADERS)
def test_a_damaged_header_costs_no_event(engine, kind):
    text = f'{{{DAMAGED_HEADERS[kind]}"traceEvents": [{A}, {B}, {C}], "baseTimeNanoseconds": 12}}'
    trace = scan(text.encode(), engine)
    assert names(trace) == ["a", "b", "c"]
    assert trace.header["baseTimeNanoseconds"] == 12
    assert trace.damage


def test_a_damaged_member_behind_the_events_costs_itself(engine):
    trace = scan(
        f'{{"traceEvents": [{A}], "INFO": ["say "hi""], "traceName": "t", "baseTimeNanoseconds": 12}}'.encode(), engine
    )
    assert trace.header == {"traceName": "t", "baseTimeNanoseconds": 12}
    assert flaws(trace) == {kinds.HEADER: 1}


@pytest.mark.parametrize("key", ['"traceEvXnts": [', '"traceEvents" [', '"traceEvents": ', "", '"traceEvents": X['])
def test_events_whose_key_is_damaged_are_found(engine, key):
    trace = scan(f'{{"schemaVersion": 1, {key}{A}, {B}, {C}], "traceName": "t"}}'.encode(), engine)
    assert names(trace) == ["a", "b", "c"]
    assert trace.damage


def test_the_bracket_behind_the_events_is_missing(engine):
    trace = scan(f'{{"traceEvents": [{A}, {B}, "traceName": "t", "displayTimeUnit": "ms"}}'.encode(), engine)
    assert names(trace) == ["a", "b"]
    assert trace.header == {"traceName": "t", "displayTimeUnit": "ms"}


def test_an_endless_value_is_given_up_without_losing_what_follows(engine, monkeypatch):
    """A text without end would otherwise be held in memory for ever."""
    trace = scan(f'{{"traceEvents": [{A}, {{"ph": "X", "name": "'.encode() + b"x" * 40_000_000 + f'", {C}]}}'.encode(), engine)
    assert names(trace) == ["a", "c"]
    assert flaws(trace) == {kinds.BROKEN: 1}


# ---- two processes that wrote into one file


def rank_file(rank, count=40, pid=None, names_process=True):
    pid = pid or 1000 + rank
    events = [event(f"op{i % 7}", 10 * i, pid, correlation=i) for i in range(count)]
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": rank, "tid": 7, "ts": 3, "dur": 2, "args": {"device": rank}}
    for i in range(3, count, 4):
        events.insert(i, json.dumps(kernel | {"ts": 10 * i}))
    flow = {"ph": "s", "id": 1, "pid": pid, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"}
    named = {"name": "process_name", "ph": "M", "ts": 0, "pid": pid, "tid": 0, "args": {"name": "python"}}
    events += [json.dumps(flow)] + ([json.dumps(named)] if names_process else [])
    text = f'{{\n  "distributedInfo": {{"rank": {rank}, "world_size": 2}},\n  "traceEvents": [\n  ' + ",\n  ".join(events)
    return (text + f'\n  ],\n  "traceName": "/tmp/{rank}.json"\n}}').encode()


@pytest.mark.parametrize("share", [0.2, 0.37, 0.5, 0.6, 0.61, 0.62, 0.63, 0.7])
def test_two_writers_leave_the_prefix_of_the_first(engine, share):
    first, second = rank_file(0), rank_file(1)
    cut = int(share * len(first))
    trace = scan(first[:cut] + second[int(share * len(second)) :], engine)
    pids = {trace.tracks[t][0] for t in trace.track.tolist()}
    assert "1001" not in pids
    alone = scan(first[:cut], engine)
    count = len(alone.ts)
    assert count > 5
    assert trace.ts[:count].tolist() == alone.ts.tolist()
    assert names(trace)[:count] == names(alone)
    assert len(trace.ts) <= count + 1  # the event at the seam may read as one
    assert any("two writers" in d.what for d in trace.damage)
    assert trace.header["distributedInfo"]["rank"] == 0


def test_a_longer_file_overwritten_by_a_shorter_one(engine):
    short, long = rank_file(0, 20), rank_file(1, 60)
    trace = scan(short + long[len(short) :], engine)
    assert {trace.tracks[t][0] for t in trace.track.tolist()} == {"1000", "0"}
    assert len(trace.ts) == len(scan(short, engine).ts)
    assert any("two writers" in d.what for d in trace.damage)


def test_two_writers_that_took_turns_leave_the_first_turn(engine):
    first, second = rank_file(0), rank_file(1)
    a, b, c = (int(share * len(first)) for share in (0.3, 0.5, 0.7))
    turns = [first[:a], second[a + 50 : b], first[b + 50 : c], second[c + 50 :]]
    trace = scan(b"".join(turns), engine)
    count = len(scan(turns[0], engine).ts)
    assert {trace.tracks[t][0] for t in trace.track.tolist()} == {"1000", "0"}
    assert count <= len(trace.ts) <= count + 1
    assert any("two writers" in d.what for d in trace.damage)


def test_two_processes_in_one_sound_file_are_not_two_writers(engine):
    events = ", ".join(event(f"op{i}", i, 1000 + i // 20) for i in range(40))
    trace = scan(f'{{"traceEvents": [{events}]}}'.encode(), engine)
    assert (len(trace.ts), trace.damage) == (40, [])


def test_a_damaged_event_in_a_file_of_two_threads_is_not_two_writers(engine):
    text = rank_file(0).replace(b'"op3"', b'"op"3"', 1)
    trace = scan(text, engine)
    assert flaws(trace) == {kinds.BROKEN: 1}
    assert len(trace.ts) == len(scan(rank_file(0), engine).ts) - 1

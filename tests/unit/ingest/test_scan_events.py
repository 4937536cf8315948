"""What one event may look like, and what is made of it; each test runs over both scanners."""

from __future__ import annotations

import json
import random

import pytest

from dtprof.ingest.kineto import damage as kinds
from dtprof.schema import MISSING
from tests.unit.ingest.scan_lab import ENGINES, args_by_row, generated, records, scan, text_of

pytestmark = pytest.mark.parametrize("engine", ENGINES)


def trace_of(engine, *events, **header):
    """Scan these event texts (or dicts) in a whole document."""
    texts = [e if isinstance(e, (str, bytes)) else json.dumps(e) for e in events]
    body = b",".join(t if isinstance(t, bytes) else t.encode() for t in texts)
    members = "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in header.items())
    return scan(b"{" + members.encode() + b'"traceEvents": [' + body + b"]}", engine)


def span(ts="1", dur="2", name='"n"', args="{}", pid="1", tid="2", ph='"X"'):
    return (
        f'{{"ph": {ph}, "cat": "cpu_op", "name": {name}, "pid": {pid}, "tid": {tid}, "ts": {ts}, "dur": {dur}, "args": {args}}}'
    )


def damage(trace):
    return {d.what: d.count for d in trace.damage}


def flaw(kind):
    return kinds.FLAWS[kind]


SOUND = span(ts="1000", name='"sound"')

TIMES = {
    "0": 0, "1": 1000, "-1": -1000, "1.5": 1500, "1.25": 1250, "1.234": 1234, "-0.001": -1, "-0": 0, "0.000": 0,
    "4458676522690.655": 4458676522690655, "1712195495519689.047": 1712195495519689047, "1661203462598738": 1661203462598738000,
    "1.0005": 1001, "1.0004": 1000, "1.00049999999999": 1000, "-1.0005": -1001, "0.00049": 0, "0.0005": 1,
    "1e3": 1000000, "1.5E+2": 150000, "12e-1": 1200, "1234567e-7": 123, "0e99": 0, "1e-400": 0,
    '"12.5"': 12500, '"-3"': -3000, '"1e2"': 100000, "4611686018427387.904": 2**62,
}  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_times_are_read_exactly(engine, text):
    trace = trace_of(engine, span(ts=text), span(ts="7", name='"after"'))
    assert trace.ts.tolist() == [TIMES[text], 7000]
    assert trace.damage == []


UNUSABLE = (
    "NaN", "nan", "-nan(ind)", "inf", "-Infinity", "1e30", "9" * 30, "null", "true", '""', '"soon"', "[1]",
    "4611686018427387.905", "18446744073709551616", "1.2.3", "--1", '"NaN"',
)  # fmt: skip


@pytest.mark.parametrize("text", UNUSABLE)
@pytest.mark.parametrize("which", ["ts", "dur"])
def test_an_event_without_a_usable_time_is_left_out_and_named(engine, text, which):
    trace = trace_of(engine, span(**{which: text}), SOUND)
    assert text_of(trace.name) == ["sound"]
    assert damage(trace) == {flaw(kinds.TIME): 1}
    assert trace.events_total == 2


def test_an_event_without_ts_or_dur_is_left_out(engine):
    trace = trace_of(engine, {"ph": "X", "name": "a", "dur": 1}, {"ph": "X", "name": "b", "ts": 1}, {"ph": "s", "id": 1}, SOUND)
    assert text_of(trace.name) == ["sound"]
    assert damage(trace) == {flaw(kinds.TIME): 3}


def test_impossible_durations_are_left_out(engine):
    trace = trace_of(engine, span(dur="-0.001"), span(dur="10000000000000.001"), span(dur="10000000000000"), SOUND)
    assert trace.dur.tolist() == [10**16, 2000]
    assert damage(trace) == {flaw(kinds.NEGATIVE): 1, flaw(kinds.TIME): 1}


def test_numbers_in_arguments(engine):
    args = (
        '{"stream": "7", "device": 1.0, "correlation": 9223372036854775807, "External id": "12", "bytes": "0x10", "Rank": null}'
    )
    trace = trace_of(engine, span(args=args))
    assert args_by_row(trace.args, 1) == [{"stream": 7, "device": 1}]
    assert (trace.correlation.tolist(), trace.external.tolist()) == ([2**63 - 1], [12])
    assert trace.damage == []


@pytest.mark.parametrize(
    "bad", ["NaN", "Infinity", "-inf", "9223372036854775808", "18446744073709551616", "1e300", "-" + "9" * 40]
)
def test_an_argument_out_of_range_is_missing_and_the_event_stays(engine, bad):
    trace = trace_of(engine, span(args=f'{{"stream": 3, "correlation": {bad}, "bytes": 5}}'), SOUND)
    assert args_by_row(trace.args, 2) == [{"stream": 3, "bytes": 5}, {}]
    assert trace.correlation.tolist() == [MISSING, MISSING]
    assert damage(trace) == {flaw(kinds.NUMBER): 1}


def test_an_infinite_bandwidth_does_not_cost_the_copy(engine):
    copy = span(args='{"bytes": 8, "memory bandwidth (GB/s)": inf, "stream": 1}', name='"Memcpy HtoD"')
    trace = trace_of(engine, copy, copy, SOUND)
    assert args_by_row(trace.args, 3) == [{"bytes": 8, "stream": 1}] * 2 + [{}]
    assert damage(trace) == {flaw(kinds.NUMBER): 2}


def test_the_last_of_two_equal_keys_wins(engine):
    trace = trace_of(
        engine, span(args='{"stream": 1, "correlation": 5, "grid": [1], "stream": 2, "correlation": 6, "grid": [2, 3]}')
    )
    assert args_by_row(trace.args, 1) == [{"stream": 2, "grid": "[2,3]"}]
    assert trace.correlation.tolist() == [6]
    trace = trace_of(engine, span(args='{"stream": 1, "stream": null, "External id": 4, "external id": 5}'))
    assert args_by_row(trace.args, 1) == [{}]
    assert trace.external.tolist() == [5]


def test_both_spellings_of_external_id(engine):
    trace = trace_of(engine, span(args='{"External id": 4}'), span(args='{"external id": 5}'), span())
    assert trace.external.tolist() == [4, 5, MISSING]


def test_floats(engine):
    values = ["31", "0.5", "12.345678901234567", "1e2", '"7.5"', "null", "[1]"]
    trace = trace_of(engine, *(span(args=f'{{"est. achieved occupancy %": {v}}}') for v in values))
    found = [row.get("est. achieved occupancy %") for row in args_by_row(trace.args, len(values))]
    assert found == [31.0, 0.5, 12.345678901234567, 100.0, 7.5, None, "nan"]


def test_text_arguments_are_decoded_and_lists_stay_json_without_spaces(engine):
    args = '{"dtype": "a\\u00e9\\n\\"b\\"", "grid": [ 1,\n 2, 3 ], "kind": {"a b": [1.50, "x y\\n"]}, '
    args += '"block": 7, "In split size": null}'
    trace = trace_of(engine, span(args=args))
    assert args_by_row(trace.args, 1) == [
        {"dtype": 'aé\n"b"', "grid": "[1,2,3]", "kind": '{"a b":[1.50,"x y\\n"]}', "block": "7"}
    ]


def test_shapes_are_kept_only_where_communication_is_recorded(engine):
    args = '{"Input Dims": [[4, 2]], "Input type": ["float"], "Concrete Inputs": [""]}'
    trace = trace_of(engine, span(args=args, name='"aten::mm"'), span(args=args, name='"gloo:all_reduce"'))
    kept = {"Input Dims": "[[4,2]]", "Input type": '["float"]', "Concrete Inputs": '[""]'}
    assert args_by_row(trace.args, 2) == [{}, kept]


def test_arguments_may_come_before_the_name(engine):
    event = '{"args": {"Input Dims": [[4]], "stream": 1}, "dur": 1, "name": "nccl:x", "ph": "X", "pid": 1, "ts": 1}'
    trace = trace_of(engine, event)
    assert args_by_row(trace.args, 1) == [{"Input Dims": "[[4]]", "stream": 1}]
    assert trace.tracks == [("1", "")]


def test_pid_and_tid_are_numbers_or_texts(engine):
    pairs = [
        ("1", "2"),
        ('"1"', '"2"'),
        ('"Spans"', '"PyTorch Profiler"'),
        ("-1", "0"),
        ('""', '""'),
        ("123456789012", '"a\\tb"'),
    ]
    trace = trace_of(engine, *(span(pid=pid, tid=tid) for pid, tid in pairs))
    assert trace.tracks == [("1", "2"), ("Spans", "PyTorch Profiler"), ("-1", "0"), ("", ""), ("123456789012", "a\tb")]
    assert trace.track.tolist() == [0, 0, 1, 2, 3, 4]


TEXTS = {
    r"a\"b\\c\/d": 'a"b\\c/d', r"\b\f\n\r\t": "\b\f\n\r\t", r"\u00e9\u4E2D": "é中", r"\ud83d\ude42": "🙂", "é🙂": "é🙂", "": "",
    r"}, {\"ph\": \"X\"": '}, {"ph": "X"', "[{": "[{",
}  # fmt: skip


@pytest.mark.parametrize("written", TEXTS)
def test_texts_are_decoded(engine, written):
    trace = trace_of(engine, span(name=f'"{written}"'), SOUND)
    assert text_of(trace.name) == [TEXTS[written], "sound"]
    assert trace.damage == []


BAD_TEXTS = {
    b"a\xffb": "a\ufffdb", b"cut \xf0\x9f": "cut \ufffd", b"line\nbreak": "line\nbreak", b"nul\0": "nul\0",
    b"\x1b[31m": "\x1b[31m", rb"C:\Users\q": r"C:\Users\q", rb"\ud83d alone": "\ufffd alone", rb"\u12": r"\u12",
}  # fmt: skip


@pytest.mark.parametrize("written", BAD_TEXTS)
def test_bad_texts_are_repaired_and_counted(engine, written):
    odd = span(name='"@"').encode().replace(b"@", written)
    trace = trace_of(engine, odd, odd, SOUND)
    assert text_of(trace.name) == [BAD_TEXTS[written]] * 2 + ["sound"]
    assert [(d.what, d.count) for d in trace.damage] == [(kinds.BAD_TEXT, 2)]
    assert trace.damage[0].offset == len(b'{"traceEvents": [') + odd.index(written)


def test_equal_texts_written_differently_are_one(engine):
    trace = trace_of(engine, span(name=r'"\u0061b"'), span(name='"ab"'), span(name=r'"a\/b"'), span(name='"a/b"'))
    assert trace.name.values == ("ab", "a/b")
    assert trace.name.codes.tolist() == [0, 0, 1, 1]


def test_an_event_need_not_have_a_name_or_category(engine):
    trace = trace_of(engine, {"ph": "X", "ts": 1, "dur": 1}, span(name="null"), span(name="12"))
    assert text_of(trace.name) == [None, None, "12"]
    assert text_of(trace.cat) == [None, "cpu_op", "cpu_op"]


def test_begin_and_end_become_spans(engine):
    def event(ph, ts, name=None, tid=1, **args):
        return {"ph": ph, "ts": ts, "pid": 1, "tid": tid, "cat": "c", "args": args} | ({"name": name} if name else {})

    trace = trace_of(
        engine,
        event("B", 0, "outer", stream=1, correlation=3),
        event("B", 1, "inner"),
        event("B", 1.5, "other", tid=2),
        event("E", 2.25),
        event("E", 10, "outer", stream=9, bytes=4, correlation=5),
        event("E", 11, tid=2),
        SOUND,
    )
    assert text_of(trace.name) == ["outer", "inner", "other", "sound"]
    assert trace.dur.tolist() == [10000, 1250, 9500, 2000]
    assert trace.correlation.tolist() == [5, MISSING, MISSING, MISSING]
    assert args_by_row(trace.args, 4) == [{"stream": 9, "bytes": 4}, {}, {}, {}]
    assert trace.damage == []


def test_ends_and_begins_that_find_no_partner(engine):
    def event(ph, ts, name, **args):
        return {"ph": ph, "ts": ts, "name": name, "pid": 1, "tid": 1, "args": args}

    events = [
        event("E", 0, "never begun"), event("B", 1, "a", stream=1), event("B", 2, "never ended", stream=2),
        event("E", 3, "a"), event("B", 9, "backwards", stream=3), event("E", 8, "backwards"),
        event("B", 10, "cut off", stream=4), json.loads(SOUND),
    ]  # fmt: skip
    trace = trace_of(engine, *events)
    assert text_of(trace.name) == ["a", "sound"]
    assert trace.dur.tolist() == [2000, 2000]
    assert args_by_row(trace.args, 2) == [{"stream": 1}, {}]
    assert damage(trace) == {flaw(kinds.UNPAIRED): 3, flaw(kinds.NEGATIVE): 1}


def test_flows(engine):
    def flow(ph, number, **more):
        return {"ph": ph, "id": number, "pid": 1, "tid": 2, "ts": 1.5, "cat": "ac2g", "name": "ac2g", **more}

    trace = trace_of(engine, flow("s", 7), flow("t", "8"), flow("f", "0x1F", bp="e"), flow("f", "never"), flow("s", None))
    assert trace.flow_phase.tolist() == [0, 1, 2]
    assert trace.flow_id.tolist() == [7, 8, 31]
    assert trace.flow_ts.tolist() == [1500] * 3
    assert text_of(trace.flow_cat) == ["ac2g"] * 3
    assert damage(trace) == {flaw(kinds.FLOW): 2}


def test_memory_instants(engine):
    args = {
        "Total Reserved": 10,
        "Total Allocated": 9,
        "Bytes": -3,
        "Addr": 2**47,
        "Device Id": 0,
        "Device Type": 1,
        "stream": 4,
    }
    instant = {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "cat": "cpu_instant_event",
        "pid": 1,
        "tid": 2,
        "ts": 3.25,
        "args": args,
    }
    trace = trace_of(engine, instant, instant | {"name": "Record Window End"}, instant | {"ts": 4, "args": {"Bytes": 5}}, SOUND)
    assert trace.memory_ts.tolist() == [3250, 4000]
    read = {k: v for k, v in args.items() if k != "stream"}
    assert args_by_row(trace.memory_args, 2) == [read, {"Bytes": 5}]
    assert args_by_row(trace.args, 1) == [{}]


def test_metadata(engine):
    trace = trace_of(
        engine,
        {"name": "process_name", "ph": "M", "ts": 1, "pid": 5, "tid": 0, "args": {"name": "python"}},
        {"name": "process_sort_index", "ph": "M", "pid": "Spans", "args": {"sort_index": 536870912}},
        b'{"name": "thread_name", "ph": "M", "ts": NaN, "pid": 5, "tid": 6, "args": {"name": "a\xff", "more": 1}}',
        {"name": "none", "ph": "M"},
    )
    assert trace.metadata == [
        ("process_name", "5", "0", "python"),
        ("process_sort_index", "Spans", "", "536870912"),
        ("thread_name", "5", "6", "a\ufffd"),
        ("none", "", "", ""),
    ]


def test_other_phases_are_counted_and_passed_by(engine):
    trace = trace_of(
        engine, {"ph": "C", "ts": 1, "name": "counter", "args": {"x": 1}}, {"ph": "XX", "ts": 1, "dur": 1}, {"ph": 3}, SOUND
    )
    assert text_of(trace.name) == ["sound"]
    assert (trace.events_total, trace.damage) == (4, [])


def test_an_object_that_is_no_event(engine):
    trace = trace_of(engine, {"name": "what"}, {}, SOUND)
    assert text_of(trace.name) == ["sound"]
    assert (trace.events_total, damage(trace)) == (1, {flaw(kinds.NO_PH): 2})


def test_deep_and_wide_values_are_stepped_over(engine):
    deep = '"deep": ' + "[" * 40 + "]" * 40
    wide = '"wide": {' + ", ".join(f'"k{i}": [{i}, "}}", {{"a": null}}]' for i in range(300)) + "}"
    trace = trace_of(
        engine,
        span(args="{" + deep + ", " + wide + ', "stream": 4}'),
        span(args='{"too deep": ' + "[" * 99 + "]" * 99 + "}"),
        SOUND,
    )
    assert args_by_row(trace.args, len(trace.ts))[0] == {"stream": 4}
    assert text_of(trace.name)[-1] == "sound"


def test_any_cut_into_chunks_gives_the_same(engine):
    doc = generated(random.Random(5), 30, "kineto")
    whole_text = records(scan(doc.text, engine))
    order = {"X": 0, "s": 1, "t": 1, "f": 1, "i": 2, "M": 3}
    assert whole_text == sorted((r for _, _, r in doc.events if r), key=lambda r: order[r[0]])
    for sizes in ([1], [2], [3], [7], [64], [100, 1], [5000, 1, 1, 1, 400]):
        assert records(scan(doc.text, engine, sizes)) == whole_text

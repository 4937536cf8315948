"""Kineto documents to scan, generated or real, in every layout, and what must come out of them.

The oracle is the standard library's ``json`` on each intact event by itself, with times as ``Decimal``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from dtprof.ingest.kineto.assemble import assemble
from dtprof.ingest.kineto.collected import Notes
from dtprof.ingest.kineto.fallback import PythonScanner
from dtprof.ingest.kineto.raw import (
    COMM_TEXT_ARGS,
    FLOAT_ARGS,
    INT_ARGS,
    MEMORY_ARGS,
    TEXT_ARGS,
    RawTrace,
    comm_like,
)
from dtprof.ingest.kineto.scan import has_c, scan_chunks
from dtprof.schema import MISSING

ENGINES = ("c", "python") if has_c() else ("python",)


class Number(str):
    """A JSON number as written."""


def nanoseconds(text):
    return int((Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_UP))


# ---- what comes out


def scan(data: bytes, engine: str, sizes=None) -> RawTrace:
    """Scan ``data``, cut into chunks of these sizes (the last one repeats)."""
    pieces, at = [], 0
    sizes = list(sizes or [1 << 18])
    while at < len(data):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        pieces.append(data[at : at + size])
        at += size
    if engine == "python" and max(sizes) < 1 << 18:
        scanner = PythonScanner(batch_bytes=max(sizes))
        for piece in pieces:
            scanner.feed(piece)
        return assemble(scanner.finish(), Notes())
    return assemble(scan_chunks(pieces, engine), Notes())


def args_by_row(args, count):
    rows = [{} for _ in range(count)]
    for key, sparse in args.items():
        values = sparse.values
        texts = [values.values[c] for c in values.codes.tolist()] if hasattr(values, "codes") else values.tolist()
        assert sparse.rows.tolist() == sorted(set(sparse.rows.tolist()))
        for row, value in zip(sparse.rows.tolist(), texts, strict=True):
            rows[row][key] = "nan" if value != value else value
    return rows


def text_of(strings):
    return [strings.values[c] if c >= 0 else None for c in strings.codes.tolist()]


def records(trace: RawTrace) -> list[tuple]:
    """All that the trace says, one tuple per event: spans, then flows, then memory instants, then metadata."""
    track = [trace.tracks[c] for c in trace.track.tolist()]
    args = args_by_row(trace.args, len(trace.ts))
    columns = (trace.ts, trace.dur, trace.correlation, trace.external)
    spans = zip(*(c.tolist() for c in columns), text_of(trace.name), text_of(trace.cat), track, args, strict=True)
    out = [("X", *row[:-1], tuple(sorted(row[-1].items()))) for row in spans]
    flow_track = [trace.tracks[c] for c in trace.flow_track.tolist()]
    flows = (trace.flow_phase.tolist(), trace.flow_id.tolist(), trace.flow_ts.tolist(), text_of(trace.flow_cat), flow_track)
    out += [("stf"[phase], *rest) for phase, *rest in zip(*flows, strict=True)]
    memory = args_by_row(trace.memory_args, len(trace.memory_ts))
    out += [("i", ts, tuple(sorted(a.items()))) for ts, a in zip(trace.memory_ts.tolist(), memory, strict=True)]
    return out + [("M", *row) for row in trace.metadata]


def whole(trace: RawTrace) -> dict:
    """Everything, for comparing engines."""
    return {
        "records": records(trace),
        "header": repr(trace.header),
        "total": trace.events_total,
        "damage": [(d.what, d.offset, d.count) for d in trace.damage],
        "names": trace.name.values,
        "tracks": trace.tracks,
        "codes": trace.name.codes.tolist(),
    }


# ---- what must come out


def argument(key, value):
    if key in INT_ARGS or key in MEMORY_ARGS:
        return int(value) if str(value).lstrip("-").isdigit() else None
    if key in FLOAT_ARGS:
        return float(value)
    if isinstance(value, str):
        return str(value)
    # nested numbers are written as they stand
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).replace("\0", "")


def expected(text: bytes) -> tuple | None:
    """The record of one intact event; None where it has none (unread phases)."""
    event = json.loads(text, parse_float=Number, parse_int=Number)
    ph, name = event["ph"], event.get("name")
    args = event.get("args", {})
    track = (event.get("pid", ""), event.get("tid", ""))
    if ph == "X":
        kept = INT_ARGS + FLOAT_ARGS + TEXT_ARGS + (COMM_TEXT_ARGS if comm_like(name) else ())
        found = {k: _argument_text(text, k, args[k]) for k in kept if k in args}
        found = {k: v for k, v in found.items() if v is not None}
        external = args.get("External id", args.get("external id", MISSING))
        times = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        ids = int(args.get("correlation", MISSING)), int(external)
        return ("X", *times, *ids, name, event.get("cat"), track, tuple(sorted(found.items())))
    if ph in ("s", "t", "f"):
        return (ph, int(event["id"], 0), nanoseconds(event["ts"]), event.get("cat"), track)
    if ph == "i" and name == "[memory]":
        found = {k: int(args[k]) for k in MEMORY_ARGS if k in args}
        return ("i", nanoseconds(event["ts"]), tuple(sorted(found.items())))
    if ph == "M":
        return ("M", name, *track, str(next(iter(args.values()))))
    return None


def _argument_text(text, key, value):
    if isinstance(value, (list, dict)):
        # as written, without white space: numbers and escapes keep their spelling
        start = text.index(json.dumps(key).encode() + b":") + len(json.dumps(key)) + 1
        start += len(text[start:]) - len(text[start:].lstrip())
        _, length = json.JSONDecoder().raw_decode(text[start:].decode())
        raw = text[start:].decode()[:length]
        quoted, out, previous = False, [], ""
        for c in raw:
            if c == '"' and previous != "\\":
                quoted = not quoted
            if quoted or not c.isspace():
                out.append(c)
            previous = "" if previous == "\\" else c
        return "".join(out)
    return argument(key, value)


# ---- generated events

NAMES = (
    "aten::add", "void gemm<float, {lambda()#1}>(int*, char[])", 'quoted "name" \\ back', "é中文🙂", "tab\tline\nbreak",
    "nccl:all_reduce", "record_param_comms", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "", "}, {", "[", "a" * 300, "ProfilerStep#12",
)  # fmt: skip


def make_event(rng: random.Random, number: int) -> dict:
    """One event whose ts is its own."""
    ts = Number(f"{(number - 3) * 1000 + rng.randrange(900)}" + rng.choice(["", f".{rng.randrange(1000):03d}", ".5", ".25"]))
    kind = rng.random()
    if kind < 0.35:
        args = {"External id": number, "Record function id": 0, "Ev Idx": number}
        if rng.random() < 0.5:
            args |= {"Sequence number": rng.randrange(1000), "Fwd thread id": rng.randrange(4)}
        if rng.random() < 0.5:
            args |= {
                "Input Dims": [[rng.randrange(99), 3], [], [[1]]],
                "Input type": ["float", ""],
                "Concrete Inputs": ['"', ""],
            }
        if rng.random() < 0.2:
            args |= {
                "Call stack": "a.py(1): f; {b}",
                "memory bandwidth (GB/s)": Number("12.25e1"),
                "x": {"y": [1, {"z": None}]},
            }
        dur = Number(rng.choice(["0", "12", "3.125", "0.001", "99999.999"]))
        return {"ph": "X", "cat": "cpu_op", "name": rng.choice(NAMES), "pid": 77, "tid": 78, "ts": ts, "dur": dur, "args": args}
    if kind < 0.6:
        args = {
            "External id": number,
            "queued": 0,
            "device": 1,
            "context": 1,
            "stream": rng.randrange(30),
            "correlation": number * 7,
        }
        args |= {
            "grid": [rng.randrange(99), 1, 1],
            "block": [256, 1, 1],
            "est. achieved occupancy %": Number(rng.choice(["31", "0.5"])),
        }
        if rng.random() < 0.5:
            args |= {
                "Collective name": "allreduce",
                "In msg nelems": 1024,
                "dtype": "Float",
                "Process Group Ranks": "[0, 1, ...]",
            }
        return {
            "ph": "X",
            "cat": "kernel",
            "name": rng.choice(NAMES),
            "pid": 1,
            "tid": 7,
            "ts": ts,
            "dur": Number("5.5"),
            "args": args,
        }
    if kind < 0.8:
        return {
            "ph": rng.choice("stf"),
            "id": number,
            "pid": 77,
            "tid": rng.choice([78, "Trace"]),
            "ts": ts,
            "cat": "ac2g",
            "name": "ac2g",
        }
    if kind < 0.9:
        args = {
            "Total Reserved": 2**33,
            "Total Allocated": number,
            "Bytes": -number,
            "Addr": 2**46 + number,
            "Device Id": 0,
            "Device Type": 1,
        }
        return {
            "ph": "i",
            "cat": "cpu_instant_event",
            "s": "t",
            "name": "[memory]",
            "pid": 77,
            "tid": 78,
            "ts": ts,
            "args": args,
        }
    if kind < 0.95:
        return {
            "name": "thread_name",
            "ph": "M",
            "ts": ts,
            "pid": 77,
            "tid": rng.choice([78, "Spans"]),
            "args": {"name": f"thread {number}"},
        }
    return {
        "ph": "X",
        "cat": "Trace",
        "ts": ts,
        "dur": 10,
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "name": "PyTorch Profiler (0)",
        "args": {"Op count": 0},
    }


def dumps(value, **style) -> str:
    """JSON with numbers as written."""
    held: list[str] = []

    def hold(v):
        if isinstance(v, Number):
            held.append(v)
            return f"@{len(held) - 1}@"
        if isinstance(v, dict):
            return {k: hold(x) for k, x in v.items()}
        return [hold(x) for x in v] if isinstance(v, list) else v

    text = json.dumps(hold(value), **style)
    for i, number in enumerate(held):
        text = text.replace(f'"@{i}@"', number)
    return text


LAYOUTS: dict[str, tuple[Callable[[dict], str], str, str, str]] = {
    # how an event is written; what stands before, between and after events
    "kineto": (lambda e: "{\n    " + dumps(e)[1:-1].replace(', "args"', ',\n    "args"') + "\n  }", "\n  ", ",\n  ", "\n  "),
    "minified": (lambda e: dumps(e, separators=(",", ":"), ensure_ascii=False), "", ",", ""),
    "dumped": (lambda e: dumps(e), "", ", ", ""),
    "pretty": (lambda e: dumps(e, indent=4).replace("\n", "\n        "), "\n        ", ",\n        ", "\n    "),
    "sorted": (lambda e: dumps(e, sort_keys=True), "", ",\r\n", "\t"),
}


@dataclass
class Document:
    """Text and where its events are: (start, end, record)."""

    text: bytes
    events: list[tuple[int, int, tuple | None]]


def document(events: list[str], layout: str = "kineto", bare: bool = False, tail: bool = True) -> Document:
    """A whole file of these event texts."""
    _, before, between, after = LAYOUTS[layout]
    head = '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "A \\"B\\""\n    }\n  ],\n'
    head += '  "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},\n  "traceEvents": '
    text = ("" if bare else head) + "["
    out, spans = bytearray(text.encode()), []
    out += before.encode()
    for i, event in enumerate(events):
        out += between.encode() if i else b""
        raw = event.encode()
        spans.append((len(out), len(out) + len(raw), expected(raw)))
        out += raw
    out += after.encode() + b"]"
    if not bare:
        out += (
            b',\n  "traceName": "/tmp/x.json",\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1711964646000000000\n}'
            if tail
            else b"\n}"
        )
    return Document(bytes(out), spans)


def generated(rng: random.Random, count: int, layout: str | None = None, **options) -> Document:
    """A document of made-up events."""
    layout = layout or rng.choice(list(LAYOUTS))
    write = LAYOUTS[layout][0]
    return document([write(make_event(rng, i)) for i in range(count)], layout, **options)


def of_file(text: bytes, count: int) -> Document:
    """The first events of a real file, byte by byte as they are there."""
    start = text.index(b"[", text.index(b'"traceEvents"'))
    at, decoded, spans = start + 1, text.decode(), []
    for _ in range(count):
        at = min(text.index(b"{", at), len(text))
        _, stop = json.JSONDecoder().raw_decode(decoded, at)
        spans.append((at, stop, expected(text[at:stop])))
        at = stop
    return Document(text[:at] + b"\n  ],\n" + b'  "traceName": "x"\n}', spans)

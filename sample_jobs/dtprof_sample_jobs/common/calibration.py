"""What a measurement of collectives reads and writes: sizes, the lines of RUN/calibration.jsonl, a table for people.

Sizes and bandwidths follow nccl-tests, doc/PERFORMANCE.md: bytes S is the larger side, algbw = S / t, busbw = algbw *
factor(op, n). The time t of a repetition is that of the rank which took least, since it came last and waited for nobody; for
operations that do not end together (broadcast, reduce, send/recv) it is that of the rank which took most.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from dtprof.catalogue.collectives import SYNCHRONISING, busbw_factor

UNEVEN = "all_to_all_uneven"
MAX_BYTES = 16 << 30
Entry = dict[str, Any]


def names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """An argparse type: some of the known names."""
    found = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in found if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return found


def sizes(text: str) -> tuple[int, ...]:
    """An argparse type: ``4K,1M`` or ``4K:1M:4`` (from, to, factor) in bytes, K, M and G being powers of 1024."""
    matches = [re.fullmatch(r"(\d+)([KMG]?)", item) for item in re.split("[,:]", text)]
    values = [int(m[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[m[2]] for m in matches if m]
    if ":" in text and len(values) == 3 and len(matches) == 3 and values[2] > 1 and 0 < values[0] <= values[1]:
        low, high, factor = values
        values = [low * factor**k for k in range(int(math.log(high / low, factor) + 1e-9) + 1)]
    elif ":" in text or len(values) < len(matches):
        values = []
    if not values or not all(0 < value <= MAX_BYTES for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} are no sizes; write 4K,64K,1M or 4K:1M:4 (from, to, factor), up to 16G")
    return tuple(values)


def one_size(text: str) -> int:
    """An argparse type: ``4M`` in bytes."""
    found = sizes(text)
    if len(found) > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than one size")
    return found[0]


def merge(per_rank: Sequence[Sequence[Entry]]) -> list[Entry]:
    """The lines of calibration.jsonl from what every rank measured, in the order of measurement."""
    rows = []
    for same in zip(*per_rank, strict=True):
        for ranks in dict.fromkeys(entry["ranks"] for entry in same):
            mine = [same[rank] for rank in ranks]
            rows.append(link_row(mine[0]) if mine[0]["kind"] == "link" else collective_row(mine))
    return rows


def collective_row(mine: Sequence[Entry]) -> Entry:
    """One line from the entries of a group's ranks, see docs/jobs.md."""
    op = mine[0]["op"].removesuffix("_uneven")
    pick = min if op in SYNCHRONISING else max
    times = [pick(each) for each in zip(*(entry["times_ns"] for entry in mine), strict=True)]
    median = statistics.median(times)
    algbw = mine[0]["bytes"] * mine[0]["in_flight"] / median if mine[0]["bytes"] else None
    factor = busbw_factor(op, mine[0]["n"])
    return {
        **mine[0], "op": op, "uneven": mine[0]["op"] == UNEVEN, "times_ns": times, "median_ns": median, "low_ns": min(times),
        "high_ns": max(times), "algbw_gb_s": algbw, "busbw_gb_s": None if algbw is None or factor is None else algbw * factor,
    }  # fmt: skip


def link_row(entry: Entry) -> Entry:
    """One line for one ordered pair: latency is half a small round trip, bandwidth that of what a large message adds to it.

    The bandwidth is by the shortest times: a busy machine does not add the same to a small message and to a large one.
    """
    moving = min(entry["times_ns"]) - min(entry["round_trip_ns"])
    latency = statistics.median(entry["round_trip_ns"]) / 2
    return {**entry, "latency_ns": latency, "bandwidth_gb_s": entry["bytes"] / moving if moving > 0 else None}


def table(rows: Sequence[Entry]) -> str:
    """What was measured, untraced, for people."""
    lines = [
        f"{'operation':22}{'ranks':14}{'bytes':>11}{'time us':>12}{'lowest':>11}{'highest':>11}{'algbw GB/s':>12}{'busbw':>9}"
    ]
    for row in [row for row in rows if row["kind"] == "collective" and not row["traced"]]:
        what = row["op"] + (" uneven" if row["uneven"] else "")
        what += f" {row['in_flight']} in {row['groups']}" if row["in_flight"] > 1 else ""
        figures = "".join(f"{row[key] / 1e3:{width}.1f}" for key, width in (("median_ns", 12), ("low_ns", 11), ("high_ns", 11)))
        speed = "" if row["algbw_gb_s"] is None else f"{row['algbw_gb_s']:12.4f}{row['busbw_gb_s']:9.4f}"
        lines.append(f"{what:22}{','.join(map(str, row['ranks'])):14}{row['bytes']:11}{figures}{speed}")
    for row in [row for row in rows if row["kind"] == "link" and not row["traced"]]:
        bandwidth = "not resolved" if row["bandwidth_gb_s"] is None else f"{row['bandwidth_gb_s']:.4f} GB/s"
        lines.append(f"link {row['ranks'][0]} to {row['ranks'][1]}: latency {row['latency_ns'] / 1e3:.1f} us, {bandwidth}")
    return "\n".join(lines)

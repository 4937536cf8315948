"""What reading a Kineto trace costs: CPU and memory, against the least possible and against Holistic Trace Analysis.

    python benchmarks/ingest.py                          100 and 500 MB, made by tiling a real trace found through DTPROF_TRUTH
    python benchmarks/ingest.py --mb 100 --path my.json.gz --json

Every figure is the median of fresh processes. ``cpu_s`` is user and system time after the imports, all threads and child
processes included; ``rss_added_mb`` is peak minus after-import memory (MiB). ``x_gunzip`` and ``x_floor`` are multiples of
the CPU of decompressing alone, and of the floor: decompressing with isal, then walking over the text with simdjson
(floor.cpp, compiled here; needs g++ and libsimdjson). ``x_hta`` is how many times less CPU than HTA a method takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SOURCE = "traces/kineto/a100_rank0of2_collective_args_ns.json.gz"
METHODS = ("gunzip", "floor", "scanner", "fallback", "open", "open and cache", "hta", "two ranks in turn", "two ranks at once")


class Skip(Exception):  # noqa: N818
    """This method cannot be measured here; the message says why."""


# ---- in the fresh process


def cpu() -> float:
    """CPU seconds of this process and its children so far."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)


def memory(field: str) -> float:
    """VmRSS or VmHWM of this process in MiB."""
    line = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(field))
    return int(line.split()[1]) / 1024


def prepare(method: str, path: Path) -> Callable[[], Any]:
    """Import what ``method`` needs and return what is measured."""
    if method == "gunzip":
        from dtprof.ingest.kineto.chunks import chunks
        from dtprof.ingest.kineto.collected import Notes

        return lambda: sum(map(len, chunks(path, Notes())))
    if method in ("scanner", "fallback"):
        from dtprof.ingest.kineto import scan

        if method == "scanner" and not scan.has_c():
            raise Skip("the C scanner was not built (make setup)")
        return lambda: scan.scan_file(path, engine="c" if method == "scanner" else "python")
    if method == "hta":
        import logging

        from hta.trace_analysis import TraceAnalysis

        logging.disable(logging.CRITICAL)
        return lambda: TraceAnalysis(trace_files={0: str(path)})
    return prepare_open(method, path)


def prepare_open(method: str, path: Path) -> Callable[[], Any]:
    """The whole way to a Run; the tables are looked at, so that nothing is put off."""
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow.parquet  # noqa: F401  # imported by the first open otherwise

    import dtprof

    options: dict[str, Any] = {"cache": method == "open and cache"}
    if method == "two ranks in turn":
        options["executor"] = ThreadPoolExecutor(1)
    run_of = dtprof.open_run

    def whole() -> Any:
        run = run_of(path, **options)
        return run, [len(run.table("events", part.ordinal)) for part in run.manifest.parts]

    return whole


def measure(method: str, path: Path) -> dict[str, Any]:
    """Run ``method`` once in this process."""
    work = prepare(method, path)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    start, wall = cpu(), time.perf_counter()
    kept = work()
    wall, spent = time.perf_counter() - wall, cpu() - start
    added = memory("VmHWM") - before
    del kept
    return {"cpu_s": spent, "wall_s": wall, "rss_added_mb": added}


# ---- in the driver


def floor_binary(folder: Path) -> Path:
    """Compile the walk."""
    binary = folder / "floor"
    command = ["g++", "-O3", "-march=native", "-std=c++17", str(HERE / "floor.cpp"), "-o", str(binary), "-lsimdjson"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Skip("no g++ (apt-get install g++ libsimdjson-dev)") from error
    if made.returncode:
        raise Skip(f"floor.cpp does not compile (apt-get install libsimdjson-dev): {made.stderr.strip().splitlines()[0]}")
    return binary


def child(method: str, path: Path, python: str, cache: Path) -> dict[str, Any]:
    """Measure in a fresh process."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "DTPROF_CACHE": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    command = [python, str(HERE / "ingest.py"), "--measure", method, "--path", str(path)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    except OSError as error:
        raise Skip(f"{python} cannot be started ({error.strerror})") from error
    if ran.returncode:
        raise Skip((ran.stderr.strip().splitlines() or ["no output"])[-1])
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def walk(binary: Path, text: Path) -> dict[str, Any]:
    """The floor's second half: CPU and memory of the walk."""
    ran = subprocess.run([str(binary), str(text)], capture_output=True, text=True, check=True)
    _, seconds, added, _ = ran.stdout.split()
    return {"cpu_s": float(seconds), "wall_s": float(seconds), "rss_added_mb": float(added)}


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median of each figure."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def one_input(label: str, path: Path, args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All methods on one trace."""
    from isal import igzip

    text = folder / "text.json"
    with igzip.open(path) as packed, text.open("wb") as out:
        while block := packed.read(1 << 20):
            out.write(block)
    pair = folder / f"pair-{label}"
    pair.mkdir()
    for rank in (0, 1):
        (pair / f"rank{rank}.json.gz").symlink_to(path)
    rows: list[dict[str, Any]] = []
    for method in args.methods:
        repeat = 1 if method == "hta" and path.stat().st_size > 2e7 else args.repeat
        try:
            runs = [one_run(method, path, pair, text, args, folder) for _ in range(repeat)]
            rows.append({"input": label, "method": method, **median(runs)})
        except Skip as reason:
            rows.append({"input": label, "method": method, "skipped": str(reason)})
    text.unlink()
    return relate(rows)


def one_run(method: str, path: Path, pair: Path, text: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One measurement of one method."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        if method == "floor":
            gunzip, walked = child("gunzip", path, sys.executable, Path(cache)), walk(floor_binary(folder), text)
            return {key: gunzip[key] + walked[key] for key in gunzip}
        python = args.hta_python if method == "hta" else sys.executable
        return child(method, pair if method.startswith("two ranks") else path, python, Path(cache))


def relate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the multiples."""
    spent = {row["method"]: row["cpu_s"] for row in rows if "cpu_s" in row}
    wall = {row["method"]: row["wall_s"] for row in rows if "wall_s" in row}
    for row in rows:
        if "cpu_s" in row:
            row["x_gunzip"] = row["cpu_s"] / spent["gunzip"] if "gunzip" in spent else None
            row["x_floor"] = row["cpu_s"] / spent["floor"] if "floor" in spent else None
            row["x_hta"] = spent["hta"] / row["cpu_s"] if "hta" in spent else None
        if row["method"] == "two ranks at once" and "two ranks in turn" in wall and "wall_s" in row:
            row["speedup"] = wall["two ranks in turn"] / row["wall_s"]
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """A table."""
    heads = ("input", "method", "cpu_s", "wall_s", "rss_added_mb", "x_gunzip", "x_floor", "x_hta")
    print(f"{heads[0]:10} {heads[1]:20}" + "".join(f"{h:>14}" for h in heads[2:]))
    for row in rows:
        figures = "".join(f"{row[h]:14.3f}" if row.get(h) is not None else f"{'-':>14}" for h in heads[2:])
        note = f"  {row['speedup']:.2f} x faster than in turn" if "speedup" in row else ""
        print(
            f"{row['input']:10} {row['method']:20}" + (f"  skipped: {row['skipped']}" if "skipped" in row else figures + note)
        )


def source(args: argparse.Namespace) -> Path:
    """The real trace that is tiled."""
    found = args.path or Path(os.environ.get("DTPROF_TRUTH", ROOT.parent / "shared")) / SOURCE
    if not found.is_file():
        raise SystemExit(f"{found}: no such trace; name one with --path, or its folder with DTPROF_TRUTH")
    return found


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--mb", type=float, nargs="+", default=[100, 500], help="sizes of the traces to make, in 10^6 bytes of JSON"
    )
    parser.add_argument("--path", type=Path, help="the trace to tile")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which the median is taken")
    parser.add_argument("--hta-python", default=sys.executable, help="a Python in which HolisticTraceAnalysis is installed")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="what to measure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.path)))
        return
    from tiling import tile

    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as name:
        folder = Path(name)
        for megabytes in args.mb:
            path = folder / f"{megabytes:g}.json.gz"
            size = tile(source(args), path, megabytes)
            print(f"made {size / 1e6:.1f} MB of JSON, {path.stat().st_size / 1e6:.1f} MB gzipped", file=sys.stderr)
            rows += one_input(f"{megabytes:g} MB", path, args, folder)
    if args.json:
        print(json.dumps({"rows": rows, "source": str(source(args)), "cores": os.cpu_count()}))
    else:
        show(rows)


if __name__ == "__main__":
    main()

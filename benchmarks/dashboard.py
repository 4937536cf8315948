"""How long a person waits for the dashboard: the first content of an open run, and a switch of pages, in Chromium.

    benchmarks/dashboard.py [RUN] [--json]

Without RUN a run of eight ranks is made, with several hundred thousand events per rank. The run is opened once before, so
that its cache is warm. Limits: first content 2 s, a switch 0.7 s.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

FIRST_S, SWITCH_S = 2.0, 0.7
RANKS, EVENTS, STEPS = 8, 400_000, 10
SLUGS = ("advice", "ranks", "communication", "overlap", "memory", "kernels", "timeline", "whatif", "compare", "overview")


def make_run(folder):
    """A run of eight ranks on disk: kernels, collectives, steps."""
    from dtprof.ingest.match import match
    from dtprof.run import Manifest, MemoryStore, Part, Run, write_manifest, write_tables
    from dtprof.table import Strings, Table

    tables, pitch = {}, 5_000
    names = tuple(f"void at::native::vectorized_elementwise_kernel<4, Functor_{i}<float>>" for i in range(200))
    for rank in range(RANKS):
        rng = np.random.default_rng(rank)
        ts = np.arange(EVENTS, dtype=np.int64) * pitch + 10**18
        comm = np.arange(0, EVENTS, EVENTS // 200)
        kind = np.zeros(EVENTS, np.int8)
        kind[comm] = 3
        dur = rng.integers(1000, 4500, EVENTS)
        dur[comm] = rng.integers(2000, 4900, len(comm))
        step = np.minimum(np.arange(EVENTS) * STEPS // EVENTS, STEPS - 1).astype(np.int32)
        lane = np.where(kind == 3, 2, 1).astype(np.int32)
        codes = rng.integers(0, len(names), EVENTS).astype(np.int32)
        tables["events", rank] = Table.of("events", ts=ts, dur=dur, kind=kind, name=Strings(codes, names), lane=lane, step=step)
        roles = ["training", "compute", "communication"]
        tables["lanes", rank] = Table.of("lanes", id=[0, 1, 2], device=[-1, 0, 0], stream=[0, 7, 20], role=roles)
        ranks = tuple(range(RANKS))
        tables["groups", rank] = Table.of("groups", id=[0], name=["world"], ranks=[ranks], size=[RANKS], backend=["nccl"])
        many = len(comm)
        sizes = (np.arange(many) % 5 + 1) * 1_000_000
        tables["comm", rank] = Table.of(
            "comm", event=comm.astype(np.int32), op=["all_reduce"] * many, group=np.zeros(many, np.int32), seq=np.arange(many),
            bytes_in=sizes, bytes_out=sizes, bytes_known=["exact"] * many,
        )  # fmt: skip
        span = EVENTS * pitch // STEPS
        tables["steps", rank] = Table.of(
            "steps", step=list(range(STEPS)), host_ts=[10**18 + s * span for s in range(STEPS)], host_dur=[span] * STEPS,
            complete=[True] * STEPS, kind=["train"] * STEPS, captured=[True] * STEPS,
        )  # fmt: skip
    manifest = Manifest(
        world_size=RANKS, parts=[Part(ordinal=r, rank=r, backend="nccl", world_size=RANKS) for r in range(RANKS)]
    )
    run = Run(manifest, MemoryStore(tables), "made", "kineto")
    tables |= {(name, None): table for name, table in match(run).items()}
    write_tables(folder / "tables", tables)
    write_manifest(folder / "manifest.json", manifest)


def measure(run, repeats=3):
    """{first_content_s, switch_s, worst_switch_s, slowest}: medians over ``repeats`` sessions."""
    from playwright.sync_api import sync_playwright

    dtprof = str(Path(sys.executable).with_name("dtprof"))
    process = subprocess.Popen([dtprof, "dashboard", str(run), "--json"], stdout=subprocess.PIPE, text=True)
    firsts, switches = [], {slug: [] for slug in SLUGS}
    try:
        url = json.loads(process.stdout.readline())["url"]
        with sync_playwright() as playwright:
            program = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            for session in range(repeats + 1):
                tab = browser.new_page(viewport={"width": 1440, "height": 900})
                began = time.perf_counter()
                tab.goto(url)
                tab.wait_for_selector(".dt .verdict", timeout=300_000)
                if session:
                    firsts.append(time.perf_counter() - began)
                tab.wait_for_selector(".dt .foot", timeout=300_000)
                tab.wait_for_timeout(1500)
                for slug in SLUGS:
                    began = time.perf_counter()
                    title = {"whatif": "What-if"}.get(slug, slug.capitalize())
                    tab.click(f"[data-testid=stSidebar] .stPageLink a:has-text('{title}')")
                    tab.wait_for_selector(f".dt .title h1:text-is('{title}')", timeout=120_000)
                    if session:
                        switches[slug].append(time.perf_counter() - began)
                    tab.wait_for_selector("[data-test-script-state=notRunning]", timeout=120_000)
                    tab.wait_for_timeout(300)
                tab.close()
            browser.close()
    finally:
        process.terminate()
        process.wait(30)
    medians = {slug: statistics.median(found) for slug, found in switches.items()}
    slowest = max(medians, key=lambda slug: medians[slug])
    return {
        "first_content_s": round(statistics.median(firsts), 3), "switch_s": round(statistics.median(medians.values()), 3),
        "worst_switch_s": round(medians[slowest], 3), "slowest": slowest, "limit_first_s": FIRST_S, "limit_switch_s": SWITCH_S,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="a run or folder of traces (one is made)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:
        run = Path(args.run) if args.run else Path(folder) / "eight"
        if not args.run:
            make_run(run)
        found = measure(run)
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:18} {value}")


if __name__ == "__main__":
    main()

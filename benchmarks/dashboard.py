"""How long a person waits for the dashboard: the first content of an open run, and a switch of pages, in Chromium.

    benchmarks/dashboard.py [RUN] [--json]

Without RUN it is eight ranks of 100 MB each, made by tiling the real traces found through DTPROF_TRUTH (without them, of
several hundred thousand events per rank, made up). The run is opened once before, so that its cache is warm; after that
the first session of a new server is measured alone (``first_of_server_s``), then sessions of a server that has the run open.
Limits: first content 2 s, a switch 0.7 s.
"""

import argparse
import json
import os
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
SOURCE, MEGABYTES = "traces/kineto/dlrm_8rank_v100", 100
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


def make_traces(folder, source):
    """A folder of eight traces of 100 MB: real ones, again and again, all ranks in step."""
    from tiling import span_us, tile

    folder.mkdir()
    files = sorted(source.glob("*.gz"))
    period = max(map(span_us, files)) + 1000
    for file in files:
        tile(file, folder / file.name, MEGABYTES, period)


class Server:
    """``dtprof dashboard`` of a run, with its address."""

    def __init__(self, run):
        dtprof = str(Path(sys.executable).with_name("dtprof"))
        self.process = subprocess.Popen([dtprof, "dashboard", str(run), "--json"], stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(30)


def first_content(browser, url):
    """(page, seconds) until the verdict stands there."""
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    began = time.perf_counter()
    tab.goto(url)
    tab.wait_for_selector(".dt .verdict", timeout=600_000)
    return tab, time.perf_counter() - began


def settled(tab):
    """Wait until the page is drawn."""
    tab.wait_for_selector(".dt .foot", timeout=300_000)
    tab.wait_for_selector("[data-test-script-state=notRunning]", timeout=300_000)
    tab.wait_for_timeout(500)


def switch(tab, slug):
    """Seconds until another page has its first content below the title, and until it is complete."""
    title = {"whatif": "What-if"}.get(slug, slug.capitalize())
    began = time.perf_counter()
    tab.click(f"[data-testid=stSidebar] .stPageLink a:has-text('{title}')")
    tab.wait_for_selector(f".dt .title h1:text-is('{title}')", timeout=300_000)
    tab.wait_for_function(CONTENT, timeout=300_000)
    first = time.perf_counter() - began
    settled(tab)
    return first


# something of the new page stands below its title: what is left of the one before is marked as stale
CONTENT = """() => [...document.querySelectorAll(
  "[data-testid=stMain] :is(.dt .verdict, .dt section, .dt .nothing, .dt h2, .dt .tiles)"
)].some(e => !e.closest("[data-stale=true]"))"""


def measure(run, repeats=3):
    """Seconds, medians over ``repeats`` sessions: first content of a new server and of one that has the run open, switches."""
    from playwright.sync_api import sync_playwright

    firsts, switches = [], {slug: [] for slug in SLUGS}
    with sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        with Server(run) as server:
            settled(first_content(browser, server.url)[0])
        with Server(run) as server:
            tab, cold = first_content(browser, server.url)
            settled(tab)
            for session in range(repeats + 1):
                tab, first = first_content(browser, server.url)
                settled(tab)
                firsts += [first] if session else []
                for slug in SLUGS:
                    took = switch(tab, slug)
                    switches[slug] += [took] if session else []
                tab.close()
        browser.close()
    medians = {slug: statistics.median(found) for slug, found in switches.items()}
    slowest = max(medians, key=lambda slug: medians[slug])
    return {
        "first_of_server_s": round(cold, 3), "first_content_s": round(statistics.median(firsts), 3),
        "switch_s": round(statistics.median(medians.values()), 3), "worst_switch_s": round(medians[slowest], 3),
        "slowest": slowest, "limit_first_s": FIRST_S, "limit_switch_s": SWITCH_S,
        "each_s": {slug: round(value, 3) for slug, value in medians.items()},
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="a run or folder of traces (one is made)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dtprof-bench-") as folder:
        run = Path(args.run) if args.run else Path(folder) / "eight"
        source = Path(os.environ.get("DTPROF_TRUTH", "")) / SOURCE
        if not args.run:
            os.environ["DTPROF_CACHE"] = str(Path(folder) / "cache")
            if source.is_dir():
                make_traces(run, source)
            else:
                make_run(run)
        found = measure(run)
    if args.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key:18} {value}")


if __name__ == "__main__":
    main()

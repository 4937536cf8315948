"""``dtprof.testing.check_collector``: what keeps the contract passes; each way to break it is named."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dtprof.errors import PluginError
from dtprof.run import quality_rows
from dtprof.table import Table
from dtprof.testing import check_collector, violations
from dtprof_collectors.host import HostCollector


class Good:
    """Writes one line per step."""

    name = "good"
    file = None

    def start(self, context):
        self.context = context
        self.file = (context.folder / "good.txt").open("a")

    def on_step(self, step):
        self.file.write(f"{step}\n")
        self.file.flush()

    def stop(self):
        if self.file is not None:
            self.file.close()
            self.file = None

    def tables(self, folder):
        path = folder / "good.txt"
        lines = path.read_bytes().split() if path.exists() else []
        good = [int(x) for x in lines if x.isdigit()]
        rows = [{"step": step, "metric": "good", "value": 1.0, "unit": "1"} for step in good]
        return {"metrics": Table.from_rows("metrics", rows), "quality": quality_rows([])}


def test_what_keeps_the_contract_passes():
    assert violations(Good) == []
    check_collector(Good)
    check_collector(HostCollector)


def test_each_problem_is_one_line_with_the_remedy():
    class Loud(Good):
        def on_step(self, step):
            raise ValueError("no")

    with pytest.raises(PluginError, match=r"Loud does not keep the contract(?s:.*)ValueError: no(?s:.*)docs/extending.md"):
        check_collector(Loud)


class NoTables:
    name = "half"
    start = on_step = stop = lambda *_: None


class Nameless(Good):
    name = ""


class StopsBeforeStart(Good):
    def stop(self):
        self.context.folder.exists()
        super().stop()


class Prints(Good):
    def on_step(self, step):
        print("step", step)
        super().on_step(step)


class Elsewhere(Good):
    def stop(self):
        if self.file is not None:
            Path("left.txt").write_text("x")
        super().stop()


class ElsewhereInC(Good):
    def stop(self):
        if self.file is not None:
            subprocess.run(["touch", "left.txt"], check=True)
        super().stop()


class Above(Good):
    def start(self, context):
        super().start(context)
        (context.folder.parent / "sibling").mkdir()


class Exits(Good):
    def start(self, context):
        if not context.folder.exists():
            sys.exit("no folder")
        super().start(context)


class Leaves(Good):
    def start(self, context):
        super().start(context)
        gc.callbacks.append(print_nothing)


def print_nothing(*_):
    pass


class Handles(Good):
    def start(self, context):
        super().start(context)
        signal.signal(signal.SIGUSR2, print_nothing)


class SetsEnvironment(Good):
    def start(self, context):
        super().start(context)
        os.environ["OF_A_COLLECTOR"] = "1"


class Thread(Good):
    def start(self, context):
        super().start(context)
        self.event = threading.Event()
        ALIVE.append(self.event)
        threading.Thread(target=self.event.wait).start()


ALIVE = []


class NoJson(Good):
    def start(self, context):
        super().start(context)
        context.status.facts["thing"] = object()


class BelievesItsFile(Good):
    def tables(self, folder):
        path = folder / "good.txt"
        text = path.read_text() if path.exists() else ""
        rows = [{"step": int(x), "metric": "good", "value": 1.0} for x in text.splitlines()]
        return {"metrics": Table.from_rows("metrics", rows)}


class NeedsItsFile(Good):
    def tables(self, folder):
        (folder / "good.txt").stat()
        return {}


class Invents(Good):
    def tables(self, folder):
        return {"metrics": Table.from_rows("metrics", [{"step": 1}])}


class WritesAtIngest(Good):
    def tables(self, folder):
        (folder / "cache").write_text("x")
        return {}


class UnknownTable(Good):
    def tables(self, folder):
        return {"collectives": Table.empty("collectives")}


class PlainRows(Good):
    def tables(self, folder):
        return {"metrics": [{"step": 1}] if list(folder.iterdir()) else []}


class Unsorted(Good):
    def tables(self, folder):
        return {"events": Table.of("events", ts=[2, 1]) if list(folder.iterdir()) else Table.empty("events")}


class Slow(Good):
    def on_step(self, step):
        until = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < until:
            pass


SHARED = Good()


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (NoTables, "it lacks tables"),
        (Nameless, "its name is ''"),
        (lambda: SHARED, "the same object twice"),
        (StopsBeforeStart, "stop before start raised AttributeError"),
        (Prints, "it prints to stdout"),
        (Elsewhere, "left.txt"),
        (ElsewhereInC, "left.txt"),
        (Above, "sibling"),
        (Exits, "start raised SystemExit where its folder has gone"),
        (Leaves, "gc.callbacks: not as before"),
        (Handles, "signal handlers: not as before"),
        (SetsEnvironment, "the environment: not as before"),
        (Thread, "which keeps the process alive"),
        (NoJson, "cannot be written as JSON"),
        (BelievesItsFile, "where good.txt is followed by junk"),
        (NeedsItsFile, "where good.txt is gone raised FileNotFoundError"),
        (Invents, "an empty folder gives rows in metrics"),
        (WritesAtIngest, "changes the folder that it reads"),
        (UnknownTable, "'collectives', which is no table of a part"),
        (PlainRows, "something else than a dtprof.table.Table"),
        (Unsorted, "events do not ascend"),
        (Slow, "on_step takes"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_each_way_to_break_it_is_named(factory, said, monkeypatch):
    monkeypatch.delenv("OF_A_COLLECTOR", raising=False)
    handler = signal.getsignal(signal.SIGUSR2)
    try:
        found = violations(factory)
    finally:
        signal.signal(signal.SIGUSR2, handler)
        while print_nothing in gc.callbacks:
            gc.callbacks.remove(print_nothing)
        while ALIVE:
            ALIVE.pop().set()
    assert any(said in problem for problem in found), found


def test_a_price_of_its_own_and_options():
    assert violations(Slow, step_cost_ns=None) == []

    class Asks(Good):
        def start(self, context):
            super().start(context)
            context.options["must"]

    assert violations(Asks, options={"must": 1}) == []
    assert any("KeyError" in problem for problem in violations(Asks))

"""The checks behind ``check_collector``: each is a function from a candidate to the sentences of what it does wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtprof.protocols import Collector, Context, Status
from dtprof.schema import TABLES
from dtprof.table import Table
from dtprof.testing.watch import changed, settings, writes_outside

STEPS = 5
# (capture, first step): inside the steps, from their first one, none, beyond their end, of a job that was resumed
WINDOWS = (((1, 3), 0), ((0, 2), 0), ((-1, -1), 0), ((100, 102), 0), ((8, 10), 7))
JUNK = b'{}\n[]\n7\nnull\n{"step":"x","ts":[]}\n{"ts":1e400}\n\xff\xfe\x00{"a'
# copies of a folder that its own threads are still writing
_COPIES = 20
WRITES = "it writes outside its folder"
_WARM, _TIMED = 20, 200


@dataclass(frozen=True)
class Candidate:
    """A collector to be checked: how to make one, its options, and what a step may cost."""

    factory: Callable[[], Any]
    options: Mapping[str, Any]
    step_cost_ns: int | None

    def context(self, folder: Path, capture: tuple[int, int] = (1, 3), first: int = 0) -> Context:
        """What a session of one process would hand it."""
        return Context(0, 1, folder, capture, self.options, first, Status())


def trying(found: list[str], what: str, call: Callable[..., Any], *args: Any) -> Any:
    """What a call returns; what it raises becomes a sentence, and so does an attempt to end the process."""
    try:
        return call(*args)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a check has to survive whatever the candidate does
        found.append(f"{what} raised {type(error).__name__}: {error}")
        return None


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A new part folder; meanwhile the working directory is another empty one, and both are gone afterwards."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="dtprof-contract-") as root:
        folder, elsewhere = Path(root) / "part00000", Path(root) / "elsewhere"
        folder.mkdir()
        elsewhere.mkdir()
        os.chdir(elsewhere)
        try:
            yield folder
        finally:
            os.chdir(before)


def run_steps(made: Any, context: Context, found: list[str]) -> None:
    """``start`` and the steps."""
    trying(found, "start", made.start, context)
    for step in range(context.first_step, context.first_step + STEPS):
        trying(found, f"on_step({step})", made.on_step, step)


# -- the checks


def its_form(candidate: Candidate) -> list[str]:
    """A protocol's methods and a name; a new object each time."""
    found: list[str] = []
    made = trying(found, "the factory", candidate.factory)
    if made is None:
        return found or ["the factory returned None"]
    if not isinstance(made, Collector):
        lacking = [n for n in ("name", "start", "on_step", "stop", "tables") if not hasattr(made, n)]
        return [f"it is no Collector: it lacks {', '.join(lacking)}"]
    if not isinstance(made.name, str) or not made.name:
        found.append(f"its name is {made.name!r}; it must be a text that is not empty")
    if candidate.factory() is made:
        found.append("the factory returned the same object twice; sessions and ingest need one each")
    return found


def its_life(candidate: Candidate) -> list[str]:
    """Started, stepped and stopped with every kind of capture: what it writes, prints, tells and leaves behind.

    A first life is for imports: what a library does to the environment and the file system as it is imported is its own.
    """
    found: list[str] = []
    imported = environment = dict(os.environ)
    for number, (capture, first) in enumerate((WINDOWS[0], *WINDOWS)):
        made = trying(found, "the factory", candidate.factory)
        if made is None:
            return found
        with workplace() as folder:
            said = list(_one_life(made, candidate.context(folder, capture, first)))
        found += [text for text in said if number > 0 or not text.startswith((WRITES, "the environment"))]
        if number == 0:
            imported = dict(os.environ)
            os.environ.clear()
            os.environ.update(environment)
    os.environ.update(imported)
    return found


def _one_life(made: Any, context: Context) -> Iterator[str]:
    found: list[str] = []
    before, printed = settings(), io.StringIO()
    with writes_outside(context.folder) as written, contextlib.redirect_stdout(printed):
        run_steps(made, context, found)
        trying(found, "stop", made.stop)
        trying(found, "a second stop", made.stop)
    yield from found
    yield from (f"{name}: not as before start" for name in changed(before))
    if printed.getvalue():
        yield f"it prints to stdout: {printed.getvalue()[:80]!r}"
    yield from (f"{WRITES}: {path}" for path in written)
    for path in sorted(context.folder.parent.rglob("*")):
        if path.is_file() and not path.is_relative_to(context.folder) and str(path) not in written:
            yield f"{WRITES}: {path.name}"
    try:
        json.dumps(context.status.facts)
    except (TypeError, ValueError) as error:
        yield f"its facts cannot be written as JSON: {error}"
    if not all(isinstance(text, str) for text in context.status.missing):
        yield "what it says is missing must be texts"
    yield from _reading(made, context.folder, "after a whole session")


def before_it_started(candidate: Candidate) -> list[str]:
    """``stop`` without ``start``: the session does so where another part of it failed."""
    found: list[str] = []
    made = trying(found, "the factory", candidate.factory)
    if made is not None:
        trying(found, "stop before start", made.stop)
    return found


def an_empty_folder(candidate: Candidate) -> list[str]:
    """No files, no rows."""
    found: list[str] = []
    with workplace() as folder:
        tables = trying(found, "tables of an empty folder", lambda: dict(candidate.factory().tables(folder)))
        found += [f"an empty folder gives rows in {name}" for name, table in (tables or {}).items() if len(table)]
        found += [f"tables of an empty folder writes {path.name}" for path in folder.iterdir()]
    return found


def a_killed_job(candidate: Candidate) -> list[str]:
    """What lies in the folder after any step is read; so is every file of it when cut, damaged or gone."""
    found: list[str] = []
    for steps in range(STEPS + 1):
        made = trying(found, "the factory", candidate.factory)
        if made is None:
            return found
        with workplace() as folder, contextlib.redirect_stdout(io.StringIO()):
            unheard: list[str] = []
            trying(unheard, "start", made.start, candidate.context(folder))
            for step in range(steps):
                trying(unheard, "on_step", made.on_step, step)
            left = _as_killed(folder)
            trying(unheard, "stop", made.stop)
            found += _reading(candidate.factory(), left, f"after a kill at step {steps}")
            if steps == STEPS:
                found += _reading_damaged(candidate, folder)
    return found


def _as_killed(folder: Path) -> Path:
    """A copy of the folder as a kill at this instant would leave it; taken again where a thread renames a file meanwhile."""
    left = folder.parent / "left"
    for attempt in range(_COPIES):
        try:
            shutil.copytree(folder, left)
            break
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(left, ignore_errors=True)
            if attempt == _COPIES - 1:
                raise
    return left


def _reading_damaged(candidate: Candidate, folder: Path) -> Iterator[str]:
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole = file.read_bytes()
        damages = {
            "empty": b"", "cut in half": whole[: len(whole) // 2], "cut by a byte": whole[:-1],
            "followed by junk": whole + JUNK, "junk": JUNK,
        }  # fmt: skip
        for what, data in damages.items():
            file.write_bytes(data)
            yield from _reading(candidate.factory(), folder, f"where {file.name} is {what}")
        file.unlink()
        yield from _reading(candidate.factory(), folder, f"where {file.name} is gone")
        file.write_bytes(whole)


def a_folder_that_has_gone(candidate: Candidate) -> list[str]:
    """Where nothing can be written it may raise an Exception, which the session catches, and must still stop."""
    found: list[str] = []
    made = trying(found, "the factory", candidate.factory)
    if made is None:
        return found
    before = settings()
    with workplace() as folder, contextlib.redirect_stdout(io.StringIO()):
        context = candidate.context(folder / "gone")
        for what, call in (("start", lambda: made.start(context)), ("on_step", lambda: made.on_step(0)), ("stop", made.stop)):
            try:
                call()
            except Exception:  # noqa: BLE001 - allowed, and caught by the session
                continue
            except BaseException as error:  # noqa: BLE001 - this one would pass the session and end the job
                found.append(f"{what} raised {type(error).__name__} where its folder has gone: that ends the job")
        left = [name for name in changed(before) if name != "the working directory"]
    return found + [f"{name}: not as before a start that failed" for name in left]


def its_cost(candidate: Candidate) -> list[str]:
    """The median processor time of ``on_step`` where nothing is captured."""
    if candidate.step_cost_ns is None:
        return []
    found: list[str] = []
    with workplace() as folder, contextlib.redirect_stdout(io.StringIO()):
        made = candidate.factory()
        trying(found, "start", made.start, candidate.context(folder, (-1, -1)))
        times = []
        for step in range(_WARM + _TIMED):
            began = time.thread_time_ns()
            trying(found, "on_step", made.on_step, step)
            times.append(time.thread_time_ns() - began)
        trying(found, "stop", made.stop)
    took = statistics.median(times[_WARM:])
    if took > candidate.step_cost_ns:
        found.append(f"on_step takes {took / 1e3:.0f} us of processor time; allowed are {candidate.step_cost_ns / 1e3:.0f} us")
    return found


def _reading(made: Any, folder: Path, when: str) -> Iterator[str]:
    """What ``tables`` does wrong with a folder."""
    found: list[str] = []
    before = _content(folder)
    tables = trying(found, f"tables {when}", made.tables, folder)
    yield from found
    if found:
        return
    if _content(folder) != before:
        yield f"tables {when} changes the folder that it reads"
    if not isinstance(tables, Mapping):
        yield f"tables {when} returned {type(tables).__name__}; it must be a mapping of table names to tables"
        return
    for name, table in tables.items():
        yield from (f"{problem} ({when})" for problem in _wrong_with(name, table))


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _wrong_with(name: Any, table: Any) -> Iterator[str]:
    if name not in TABLES or TABLES[name].scope != "part":
        known = ", ".join(sorted(n for n, spec in TABLES.items() if spec.scope == "part"))
        yield f"tables gives {name!r}, which is no table of a part; those are {known}"
    elif not isinstance(table, Table) or table.spec.name != name:
        yield f"tables gives something else than a dtprof.table.Table of that name as {name}"
    else:
        rows: list[str] = []
        trying(rows, f"a row of {name}", lambda: [table.row(i) for i in range(len(table))])
        yield from rows
        if name == "events" and (table["ts"][1:] < table["ts"][:-1]).any():
            yield "events do not ascend by ts"


CHECKS = (before_it_started, an_empty_folder, its_life, a_killed_job, a_folder_that_has_gone, its_cost)

"""Facts of a run as they were found out before, kept in the user's cache for as long as run and code are unchanged.

One file per run: a line with the identity of the run (``ingest.identity``), that of dtprof's own code and the SHA-256 of what
follows, then a pickle of the facts and of every result of an analysis. Of a pickle only plain values are read: tables, data
classes of dtprof and arrays of numpy. What is damaged, or of another state, is computed again; a cache that cannot be
written is not an error. With plugins whose analyses or rules take part nothing is kept, for nothing says when their code
changes.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import pickle
import sys
from dataclasses import is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import dtprof
from dtprof.analyse import study_of
from dtprof.analyse.study import Study
from dtprof.ingest.cache import root
from dtprof.ingest.identity import identity
from dtprof.plugins import announced
from dtprof.report.facts import Facts, gather, verdicts_of
from dtprof.run import Run, write_atomic
from dtprof.table import Table

_CODE = frozenset({".py", ".toml", ".csv", ".txt"})
# what a pickle of arrays is made of; numpy has renamed the modules once
_PLAIN = frozenset({
    ("builtins", "set"), ("builtins", "frozenset"), ("collections", "defaultdict"), ("collections", "Counter"),
    ("numpy", "ndarray"), ("numpy", "dtype"),
    *((f"numpy.{core}.{module}", name) for core in ("core", "_core") for module, name in (
        ("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))),
})  # fmt: skip


class _Reader(pickle.Unpickler):
    """Of a file that others may have written nothing is called but what makes plain values."""

    def find_class(self, module: str, name: str) -> Any:
        """A table, a data class of dtprof or a part of an array; UnpicklingError for anything else."""
        if (module, name) in _PLAIN:
            return getattr(importlib.import_module(module), name)
        if module.startswith("dtprof.") and "." not in name:
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and (found is Table or is_dataclass(found)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def facts_of(run: Run) -> tuple[Study, Facts]:
    """The study of a run and its facts: those kept where there are any, else gathered now, and kept."""
    state = None if announced("analyses") or announced("rules") else identity(run)
    file = _file(run)
    if state is None or file is None:
        study = study_of(run)
        return study, gather(study)
    head = f"{state} {code()} ".encode()
    kept = _load(file, head)
    if kept is not None:
        facts, results = kept
        return study_of(run, results), replace(facts, run=run, verdicts=verdicts_of(run))
    study = study_of(run)
    facts = gather(study)
    _save(file, head, facts, study.results)
    return study, facts


def _file(run: Run) -> Path | None:
    """Where the facts of a run are kept; None where there is no place for a cache."""
    try:
        return root() / "facts" / hashlib.sha256(run.path.encode()).hexdigest()[:24]
    except RuntimeError:
        return None


@cache
def code() -> str:
    """Digest of dtprof's own code and catalogues, and of what their values are made of; 64 hexadecimal digits."""
    package = Path(dtprof.__file__).parent
    files = sorted(f for f in package.rglob("*") if f.suffix in _CODE)
    digest = hashlib.sha256(f"{sys.version_info} {np.__version__}\n".encode())
    for file in files:
        data = file.read_bytes()
        digest.update(f"{file.relative_to(package)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _load(file: Path, head: bytes) -> tuple[Facts, dict[str, Any]] | None:
    """What was kept of this very state; None where there is nothing, or it is damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    line, _, body = data.partition(b"\n")
    if line != head + hashlib.sha256(body).hexdigest().encode():
        return None
    try:
        facts, results = _Reader(io.BytesIO(body)).load()
    except pickle.UnpicklingError:
        return None
    return facts, results


def _save(file: Path, head: bytes, facts: Facts, results: dict[str, Any]) -> None:
    """Keep facts without the run and without what is read anew each time."""
    try:
        body = pickle.dumps((replace(facts, run=None, verdicts=()), results), protocol=5)  # type: ignore[arg-type]
    except (pickle.PicklingError, AttributeError, TypeError):
        # what an analysis found holds more than plain values
        return
    line = head + hashlib.sha256(body).hexdigest().encode() + b"\n"
    try:
        write_atomic(file, lambda temporary: temporary.write_bytes(line + body))
    except OSError:
        return

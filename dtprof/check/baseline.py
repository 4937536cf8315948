"""The baseline file: what runs of one commit measured, keyed by fingerprint, one metric to a line.

Made to be kept in version control: sorted, one metric per line with its values side by side, so that a change shows as
the lines that changed and two branches that record different machines merge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtprof.check.fingerprint import Conditions, Fingerprint, conditions, fingerprint, hardware_differs
from dtprof.check.metrics import STEP, Metric, measure
from dtprof.errors import InputError
from dtprof.protocols import Lens
from dtprof.run import write_atomic

SCHEMA = 1
KIND = "dtprof baseline"


class Recorded(msgspec.Struct, kw_only=True):
    """One run that went into a baseline: its name, when (Unix s), of which commit, in which conditions."""

    run: str
    recorded: int = 0
    commit: str = ""
    conditions: Conditions = msgspec.field(default_factory=Conditions)


class Baseline(msgspec.Struct, kw_only=True):
    """Runs on one fingerprint. Every metric has one value per run, in the order of ``runs``."""

    fingerprint: Fingerprint
    runs: list[Recorded] = []
    metrics: dict[str, Metric] = {}


class File(msgspec.Struct, kw_only=True):
    """A baseline file: one baseline for each fingerprint."""

    kind: str
    schema: int
    baselines: list[Baseline] = []


def record(studies: Sequence[tuple[str, Lens]], *, commit: str = "", recorded: int = 0) -> Baseline:
    """A baseline of several runs (name, study); InputError where they do not belong together or measured nothing."""
    print_of = [fingerprint(s.run) for _, s in studies]
    for (name, _), other in zip(studies, print_of, strict=True):
        if reason := hardware_differs(print_of[0], other):
            raise InputError(f"{name} and {studies[0][0]} cannot be one baseline: {reason}", "record them one by one")
    measured = [measure(s) for _, s in studies]
    for (name, _), found in zip(studies, measured, strict=True):
        if not found:
            raise InputError(f"{name}: no step was measured", "record a run whose loop calls prof.step()")
    names = set.intersection(*(set(m) for m in measured))
    metrics = {
        n: Metric(kind=measured[0][n].kind, worse=measured[0][n].worse, values=[m[n].value for m in measured]) for n in names
    }
    runs = [Recorded(run=name, recorded=recorded, commit=commit, conditions=conditions(s)) for name, s in studies]
    return Baseline(fingerprint=print_of[0], runs=runs, metrics=metrics)


def read(path: str) -> File:
    """Read a baseline file; InputError names file and place of what is wrong."""
    again = "record it again with dtprof baseline record"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error})", "give a file of dtprof baseline record"
        ) from error
    try:
        head = json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not JSON ({error})", again) from error
    if not isinstance(head, dict) or head.get("kind") != KIND:
        raise InputError(f"{path}: not a baseline of dtprof", "give a file of dtprof baseline record")
    if head.get("schema") != SCHEMA:
        raise InputError(f"{path}: schema {head.get('schema')!r}, and this dtprof knows {SCHEMA}", again)
    try:
        file = msgspec.json.decode(data, type=File)
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: damaged ({error})", again) from error
    for baseline in file.baselines:
        for name, metric in baseline.metrics.items():
            if len(metric.values) != len(baseline.runs):
                raise InputError(f"{path}: metric {name} has {len(metric.values)} values for {len(baseline.runs)} runs", again)
            if metric.kind in ("time", "bytes", "ratio") and min(metric.values) <= 0:
                raise InputError(f"{path}: metric {name} has a value that is not above 0", again)
            if not all(map(math.isfinite, metric.values)):
                raise InputError(f"{path}: metric {name} has a value that is no number", again)
    return file


def merged(file: File | None, new: Baseline, *, add: bool) -> File:
    """The file with ``new`` in place of the baseline of its fingerprint, or, with ``add``, its runs appended to it."""
    old = [] if file is None else file.baselines
    same = next((b for b in old if b.fingerprint.key == new.fingerprint.key), None)
    if same is not None and add:
        _refuse_again(same, new)
        shared = same.metrics.keys() & new.metrics.keys()
        metrics = {
            n: Metric(
                kind=new.metrics[n].kind, worse=new.metrics[n].worse, values=same.metrics[n].values + new.metrics[n].values
            )
            for n in shared
        }
        new = Baseline(fingerprint=new.fingerprint, runs=same.runs + new.runs, metrics=metrics)
    kept = [b for b in old if b is not same]
    return File(kind=KIND, schema=SCHEMA, baselines=sorted([*kept, new], key=lambda b: b.fingerprint.key))


def _refuse_again(old: Baseline, new: Baseline) -> None:
    """InputError for a run that is in the baseline already: it would make the noise look smaller than it is."""

    def known(baseline: Baseline) -> set[tuple[str, float]]:
        times = baseline.metrics[STEP].values if STEP in baseline.metrics else [0.0] * len(baseline.runs)
        return {(r.run, float(f"{t:.9g}")) for r, t in zip(baseline.runs, times, strict=True)}

    if again := known(old) & known(new):
        raise InputError(f"{min(again)[0]} is in the baseline already", "add other runs; a run that counts twice hides noise")


def write(path: str, file: File) -> None:
    """Write the file whole or not at all; InputError where it cannot be written."""
    try:
        write_atomic(Path(path), lambda tmp: tmp.write_text(text(file), encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error})", "give another place to --baseline"
        ) from error


def text(file: File) -> str:
    """The file as it is written: sorted, one metric or run to a line."""
    blocks = [_block(msgspec.to_builtins(b)) for b in file.baselines]
    inside = ",\n".join(blocks)
    return f'{{\n "kind": "{KIND}",\n "schema": {SCHEMA},\n "baselines": [\n{inside}\n ]\n}}\n'


def _block(baseline: dict[str, Any]) -> str:
    runs = ",\n".join(f"    {json.dumps(run, sort_keys=True)}" for run in baseline["runs"])
    metrics = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(_tidy(metric), sort_keys=True)}"
        for name, metric in sorted(baseline["metrics"].items())
    )
    head = json.dumps(baseline["fingerprint"], sort_keys=True)
    return f'  {{\n   "fingerprint": {head},\n   "runs": [\n{runs}\n   ],\n   "metrics": {{\n{metrics}\n   }}\n  }}'


def _tidy(metric: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers without a fraction, others with nine digits: a longer tail is noise in a review."""
    values = [int(v) if float(v).is_integer() else float(f"{v:.9g}") for v in metric["values"]]
    return {**metric, "values": values}


def matching(file: File, wanted: Fingerprint) -> tuple[Baseline | None, str]:
    """The baseline of this hardware, the same software before another; or None and why there is none."""
    if not file.baselines:
        return None, "the baseline file is empty"
    same = [b for b in file.baselines if not hardware_differs(b.fingerprint, wanted)]
    if not same:
        reasons = [hardware_differs(b.fingerprint, wanted) for b in file.baselines]
        return None, reasons[0] if len(reasons) == 1 else f"none of the {len(reasons)} baselines is of {wanted.key}"
    return max(same, key=lambda b: (b.fingerprint.software == wanted.software, b.fingerprint.key == wanted.key)), ""

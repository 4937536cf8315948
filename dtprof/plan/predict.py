"""Predictions for the rows of a table: the table again, with columns of predictions at its end."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dtprof.catalogue.flops import CONVENTIONS, Counted
from dtprof.errors import InputError
from dtprof.plan import row_words, sizes
from dtprof.plan.calibrated import Calibration, calibration
from dtprof.plan.memory import fits, peak_bytes
from dtprof.plan.memory.breakdown import GIB, Memory
from dtprof.plan.own import Measured
from dtprof.plan.rows import CannotPredict, Row, parse
from dtprof.plan.spec import Recompute
from dtprof.plan.time.step import Estimator

COLUMNS = (
    "pred_step_time_s", "pred_tflops_gpu", "pred_peak_mem_gb", "fits", "reason", "pred_low", "pred_high", "calibrated_by",
    "pred_tokens_s_gpu", "pred_tflops_convention", "pred_peak_mem_unit", "pred_software",
)  # fmt: skip
# estimates of peak memory are this far off where recipes are not known in full (docs/planner.md)
MEMORY_ERROR = 0.20
_UNITS = {"GB": 1e9, "GiB": float(GIB)}


@dataclass
class Predictor:
    """Predicts rows one by one; remembers estimators. ``catalogue``: from the hardware catalogue alone on new GPUs;
    ``measured``: a run that calibrates the rows of which it says something.
    """

    catalogue: bool = False
    measured: Measured | None = None
    known: dict[object, tuple[Calibration, Estimator]] = field(default_factory=dict)

    def row(self, row: Mapping[str, str]) -> dict[str, str]:
        """The predicted columns of a row as text; all blank but ``reason`` where there is no prediction."""
        try:
            return self._predicted(self._plan(row), row)
        except (CannotPredict, InputError) as error:
            return {**dict.fromkeys(COLUMNS, ""), "reason": str(error)}

    def estimate(self, row: Row) -> tuple[Calibration, float]:
        """What the prediction rests on, and the seconds of a step."""
        key = row.model, row.cluster, row.software
        if key not in self.known:
            found = calibration(*key, catalogue=self.catalogue)
            if self.measured is not None and self.measured.says_of(row.model, row.cluster):
                found = self.measured.rests
            self.known[key] = found, Estimator(*key, found.constants)
        rests, estimator = self.known[key]
        return rests, estimator.step(row.layout).seconds

    def _plan(self, row: Mapping[str, str]) -> Row:
        plan, run = parse(row), self.measured
        return parse(row, run.software) if run is not None and run.says_of(plan.model, plan.cluster) else plan

    def _predicted(self, plan: Row, row: Mapping[str, str]) -> dict[str, str]:
        rests, seconds = self.estimate(plan)
        tokens = plan.layout.tokens / seconds / plan.cluster.gpus
        source = str(row.get("source") or "")
        memory, fit, said = _memory(plan, str(row.get("recompute") or "").lower(), source)
        reasons = [*([f"assumed: {'; '.join(plan.assumed)}"] if plan.assumed else []), *said]
        unit, allocated = row_words.memory_of(source)
        peak = memory.allocated if allocated else memory.reserved
        low, high = rests.interval(seconds)
        return {
            "pred_step_time_s": f"{seconds:.6g}",
            "pred_tflops_gpu": f"{flops_per_token(plan) * tokens / 1e12:.5g}",
            "pred_peak_mem_gb": f"{peak / _UNITS[unit]:.4g}",
            "fits": "true" if fit else "false",
            "reason": "; ".join(reasons),
            "pred_low": f"{low:.6g}",
            "pred_high": f"{high:.6g}",
            "calibrated_by": rests.name,
            "pred_tokens_s_gpu": f"{tokens:.6g}",
            "pred_tflops_convention": plan.convention,
            "pred_peak_mem_unit": unit,
            "pred_software": plan.software.name,
        }


def _memory(plan: Row, recompute: str, source: str) -> tuple[Memory, bool, list[str]]:
    """Memory of the rank that needs most, whether it can fit, and what to say of it.

    A row that says nothing of recomputation is laid out with as little of it as fits, and one that recomputes some blocks with
    as many as fit takes.
    """
    tried: list[Recompute] = ["full" if "full" in recompute else plan.layout.recompute]
    by_block = tried == ["selective"] and plan.software.fsdp == 1
    if not recompute.strip() or by_block:
        tried += [one for one in ("selective", "full") if one != plan.layout.recompute]
    for one in tried:
        layout = replace(plan.layout, recompute=one)
        memory = peak_bytes(plan.model, plan.cluster, layout, plan.software)
        fit = fits(memory, plan.cluster)
        said = [f"fits with {one} recomputation"] if one != tried[0] else []
        if fit == "fits":
            return memory, True, said
        if fit == "tight":
            return memory, True, [*said, "without the allowances for fragmentation and context"]
    told = f"{memory.allocated / 1e9:.1f} of {plan.cluster.memory_bytes / 1e9:.0f} GB"
    if memory.allocated <= plan.cluster.memory_bytes * (1 + MEMORY_ERROR):
        return memory, True, [f"too close to tell: {told}, and the memory model is known to {MEMORY_ERROR:.0%}"]
    if row_words.trains_a_part(source):
        return memory, True, [f"needs {told} if all parameters are trained, which this source does not say"]
    return memory, False, [f"needs {told}"]


def flops_per_token(plan: Row) -> float:
    """Operations per token by the convention of the row's source."""
    model = plan.model
    counted = Counted(
        sizes.active_params(model), model.layers, model.hidden, plan.layout.seq, model.vocab, model.heads * model.head_dim
    )
    return CONVENTIONS[plan.convention](counted)


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file as they stand; InputError names the line that is none."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file, strict=True))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "give a CSV file with a header") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {error}", "give a CSV file in UTF-8") from None
    if not lines or not any(lines[0]):
        raise InputError(f"{path}: no header", "the first line has to name the columns, as source,model,layers,…")
    header, rows = lines[0], [line for line in lines[1:] if line]
    missing = [name for name in ("model", "gpus", "gpu_type") if name not in header]
    if missing:
        raise InputError(f"{path}: line 1 has no column {missing[0]}", "its columns have to be those of docs/planner.md")
    for number, row in enumerate(rows, 2):
        if len(row) > len(header):
            raise InputError(
                f"{path}: row {number} has {len(row)} values for {len(header)} columns", "quote values with commas"
            )
    return header, [row + [""] * (len(header) - len(row)) for row in rows]


def predicted_rows(header: list[str], rows: Iterable[list[str]], predictor: Predictor) -> tuple[list[str], list[list[str]]]:
    """Header and rows with the predicted columns; one that the table has already is written over in its place."""
    wide = [*header, *(name for name in COLUMNS if name not in header)]
    places = {name: wide.index(name) for name in COLUMNS}
    out = []
    for row in rows:
        line = [*row, *([""] * (len(wide) - len(row)))]
        for name, value in predictor.row(dict(zip(header, row, strict=True))).items():
            line[places[name]] = value
        out.append(line)
    return wide, out


def write_rows(path: Path, header: list[str], rows: Iterable[list[str]]) -> None:
    """As CSV."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", "give a file that can be written") from None

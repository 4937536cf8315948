"""A run, or several, against a baseline: which metrics got worse by more than their margin, beyond the noise.

Noise is what the baseline's own runs differ by (and those of the candidate, where there are several): Student's t on
logarithms for times and bytes, on differences for shares. Where a baseline has fewer than three runs its noise is not
known; a usual one is assumed, and said. Over the metrics, Holm keeps the chance of any false FAIL below alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, variance

from dtprof.analyse.diff import WORDS
from dtprof.analyse.results import ACCOUNTING
from dtprof.check.baseline import Baseline
from dtprof.check.fingerprint import disturbances, software_differs
from dtprof.check.metrics import STEP, Metric
from dtprof.check.result import Result, Row
from dtprof.numbers import change, count, counted, percent, size, time
from dtprof.stats import CONFIRM_ALPHA, Outcome, holm, student_quantile, student_sf

ALPHA = 0.01
MARGIN, TIME_FACTOR = 0.02, 5.0
# what runs of one commit usually differ by, where a baseline cannot say: deviation of ln(time), ln(bytes), of a share
_USUAL = {"time": 0.02, "bytes": 0.005, "ratio": 0.02, "share": 0.005}
_KNOWN_FROM, _LIKE_KNOWN = 3, 30.0
_POWER = 0.8


@dataclass(frozen=True)
class Margins:
    """Allowed worsening: of shares (points of the step) and bytes; of times; ``alpha`` over all metrics together."""

    ratio: float = MARGIN
    time: float = MARGIN * TIME_FACTOR
    alpha: float = ALPHA

    def of(self, kind: str) -> float:
        """The margin of a kind on the scale on which it is compared."""
        return self.ratio if kind == "share" else math.log1p(self.time if kind == "time" else self.ratio)


@dataclass(frozen=True)
class _Compared:
    """One noisy metric: how much worse (> 0) on its scale, its standard error and degrees of freedom, p against the margin."""

    name: str
    kind: str
    before: float
    after: float
    worse: float
    error: float
    degrees: float
    p: float
    margin: float
    assumed: bool

    def bound(self, alpha: float, sign: int) -> float:
        """One-sided bound at this level."""
        return self.worse + sign * student_quantile(alpha, self.degrees) * self.error

    def detectable(self, alpha: float) -> float:
        """Worsening that fails with probability 0.8, on its scale."""
        quantile = student_quantile(alpha, self.degrees) + student_quantile(1 - _POWER, self.degrees)
        return self.margin + quantile * self.error


def judge(
    baseline: Baseline,
    candidate: Baseline,
    *,
    margins: Margins | None = None,
    confirm: Baseline | None = None,
    control: Baseline | None = None,
    title: str = "dtprof check",
) -> Result:
    """Decide. ``confirm`` is a second measurement of the candidate in which a failure must repeat; ``control`` is a fresh
    one of the baseline's own commit, which must meet the baseline for a failure to mean anything."""
    margins = margins or Margins()
    rows = _rows(baseline, candidate, margins)
    notes = [f"software differs: {text}" for text in software_differs(baseline.fingerprint, candidate.fingerprint)]
    if confirm is not None:
        rows = _confirmed(rows, _rows(baseline, confirm, replace(margins, alpha=CONFIRM_ALPHA), correct=False))
    elif any(r.outcome == "fail" for r in rows):
        notes.append("not confirmed: give a second run of the same commit as --confirm")
    doubts = _doubts(baseline, candidate, control, margins)
    if doubts:
        rows = [_doubted(r, doubts) for r in rows]
    if any(r.values.get("assumed_noise") for r in rows):
        notes.append(f"the baseline has {counted(len(baseline.runs), 'run')}: its noise is assumed; record 3 or more")
    rows.sort(key=_order)
    outcome = _overall(rows)
    first = _headline(outcome, rows, doubts)
    if outcome == "fail" and rows[0].name == STEP and (moved := _category(baseline, candidate)):
        first = f"{first}; {moved}"
    return Result(title, outcome, first, tuple(rows), (*doubts, *notes), _document(baseline, margins))


def _category(before: Baseline, now: Baseline) -> str:
    """The accounting category that grew most, from the shares of the step; "" where there are none in both."""

    def metric(key: str) -> str:
        return f"share.{key.removesuffix('_ns')}"

    def spent(baseline: Baseline, key: str) -> float:
        return fmean(baseline.metrics[metric(key)].values) * fmean(baseline.metrics[STEP].values)

    known = [k for k in ACCOUNTING if metric(k) in before.metrics and metric(k) in now.metrics]
    grown = {k: spent(now, k) - spent(before, k) for k in known}
    most = max(grown, key=lambda k: grown[k], default=None)
    return "" if most is None or grown[most] <= 0 else f"{WORDS[most]} takes {time(grown[most])} longer"


def _document(baseline: Baseline, margins: Margins) -> dict[str, object]:
    return {
        "baseline": {"key": baseline.fingerprint.key, "runs": [r.run for r in baseline.runs]},
        "margins": {"ratio": margins.ratio, "time": margins.time},
        "alpha": margins.alpha,
    }


def _rows(baseline: Baseline, candidate: Baseline, margins: Margins, *, correct: bool = True) -> list[Row]:
    rows, compared = [], []
    for name, metric in baseline.metrics.items():
        now = candidate.metrics.get(name)
        if now is None:
            rows.append(Row(name, "inconclusive", "missing: the baseline has it and this run does not", {"missing": True}))
        elif now.kind != metric.kind:
            rows.append(
                Row(name, "inconclusive", f"a {metric.kind} in the baseline and a {now.kind} now: record the baseline again")
            )
        elif metric.kind == "exact":
            rows.append(_exact(name, metric, now))
        else:
            compared.append(_compare(name, metric, now, margins))
    adjusted = holm([c.p for c in compared]) if correct else [c.p for c in compared]
    shorter = any(c.name == STEP and c.bound(margins.alpha, 1) < 0 for c in compared)
    level = margins.alpha / max(len(compared), 1) if correct else margins.alpha
    return rows + [_noisy(c, p, margins.alpha, level, shorter) for c, p in zip(compared, adjusted, strict=True)]


def _exact(name: str, before: Metric, now: Metric) -> Row:
    unit = size if name.endswith("bytes") else count
    if len(set(before.values)) > 1:
        return Row(name, "pass", "differs between the baseline's own runs, so it is not compared", {"not_deterministic": True})
    values = {"kind": "exact", "baseline": before.values[0], "value": now.values[-1]}
    other = next((v for v in now.values if v != before.values[0]), None)
    if other is None:
        return Row(name, "pass", f"{_number(before.values[0], unit)}, as before", values)
    text = f"{_number(before.values[0], unit)} to {_number(other, unit)}; if that is meant: dtprof baseline accept"
    return Row(
        name, "fail", text, {**values, "value": other, "relative": other / before.values[0] - 1 if before.values[0] else None}
    )


def _number(value: float, unit: object) -> str:
    return (size if unit is size else count)(int(value)) if float(value).is_integer() else f"{value:,.2f}"


def _compare(name: str, before: Metric, now: Metric, margins: Margins) -> _Compared:
    scale = (lambda v: v) if before.kind == "share" else math.log
    a, b = [scale(v) for v in before.values], [scale(v) for v in now.values]
    sign = 1 if before.worse == "more" else -1
    worse = sign * (fmean(b) - fmean(a))
    degrees = float(len(a) + len(b) - 2)
    assumed = len(a) < _KNOWN_FROM
    if assumed:
        deviation, degrees = _USUAL[before.kind], _LIKE_KNOWN
    else:
        squares = variance(a) * (len(a) - 1) + (variance(b) * (len(b) - 1) if len(b) > 1 else 0.0)
        deviation = math.sqrt(squares / degrees)
    error = max(deviation * math.sqrt(1 / len(a) + 1 / len(b)), 1e-12)
    margin = margins.of(before.kind)
    p = student_sf((worse - margin) / error, degrees)
    centre = [fmean(v) if before.kind == "share" else math.exp(fmean(v)) for v in (a, b)]
    return _Compared(name, before.kind, centre[0], centre[1], worse, error, degrees, p, margin, assumed)


def _noisy(found: _Compared, adjusted: float, alpha: float, level: float, shorter: bool) -> Row:
    """``alpha`` decides a failure over all metrics and a pass of this one; ``level`` is what a single metric is held to."""
    failed = adjusted <= alpha
    high = found.bound(alpha, 1)
    if failed and shorter and found.kind == "share":
        outcome: Outcome = "pass"
    else:
        outcome = "fail" if failed else "pass" if high < found.margin else "inconclusive"
    moved = f"{_value(found.before, found)} to {_value(found.after, found)} ({_amount(found.after, found)})"
    limit, sees = _shown(found.margin, found.kind), _shown(found.detectable(level), found.kind)
    text = {
        "fail": f"{moved}, beyond the margin of {limit}",
        "pass": f"{moved}, within {limit}",
        "inconclusive": f"{moved}, may be worse by up to {_shown(high, found.kind)}; margin {limit}; {sees} would be caught",
    }[outcome]
    if failed and outcome == "pass":
        text = f"{moved}: a larger part of a shorter step"
    suspect = outcome == "inconclusive" and (found.worse > found.margin or found.name == STEP)
    values = {
        "kind": found.kind, "baseline": found.before, "value": found.after, "worse": _back(found.worse, found.kind),
        "low": _back(found.bound(alpha, -1), found.kind), "high": _back(high, found.kind), "p_adjusted": adjusted,
        "detectable": _back(found.detectable(level), found.kind), "margin": _back(found.margin, found.kind),
        "suspect": suspect, "assumed_noise": found.assumed,
    }  # fmt: skip
    return Row(found.name, outcome, text, values)


def _back(value: float, kind: str) -> float:
    return value if kind == "share" else math.expm1(min(value, 700.0))


def _shown(value: float, kind: str) -> str:
    return f"{100 * value:.1f} points" if kind == "share" else change(_back(value, kind))


def _value(value: float, found: _Compared) -> str:
    if found.kind == "ratio":
        return f"{value:.3g} x"
    return percent(value) if found.kind == "share" else time(value) if found.kind == "time" else size(round(value))


def _amount(value: float, found: _Compared) -> str:
    difference = value - found.before
    return f"{100 * difference:+.1f} points" if found.kind == "share" else change(value / found.before - 1)


def _confirmed(rows: list[Row], again: list[Row]) -> list[Row]:
    """A failure that does not repeat is inconclusive."""
    second = {r.name: r.outcome for r in again}
    return [
        replace(r, outcome="inconclusive", text=f"{r.text}; not so in the confirming run", values={**r.values, "suspect": True})
        if r.outcome == "fail" and second.get(r.name) != "fail"
        else r
        for r in rows
    ]


def _doubts(baseline: Baseline, candidate: Baseline, control: Baseline | None, margins: Margins) -> list[str]:
    """Why a failure may be the machine's, in sentences."""
    before = [r.conditions for r in baseline.runs]
    said = [text for run in candidate.runs for text in disturbances(run.conditions, before)]
    if control is not None:
        missed = [r for r in _rows(baseline, control, margins) if r.outcome == "fail"]
        if missed:
            worst = max(missed, key=lambda r: r.values.get("worse") or 0.0)
            said.append(f"the baseline's own commit no longer meets it ({worst.name}: {worst.text}): the machine has changed")
    return list(dict.fromkeys(said))


def _doubted(row: Row, doubts: list[str]) -> Row:
    """A failure of a noisy metric on a disturbed machine is inconclusive; what is exact stands."""
    if row.outcome != "fail" or row.values.get("kind") == "exact":
        return row
    return replace(row, outcome="inconclusive", text=f"{row.text}; but {doubts[0]}", values={**row.values, "suspect": True})


def _order(row: Row) -> tuple[int, float, str]:
    """The worst first: failures, then what looks worse than its margin, each by how much worse it is."""
    doubtful = row.outcome == "inconclusive" and bool(row.values.get("suspect") or row.values.get("missing"))
    rank = 0 if row.outcome == "fail" else 1 if doubtful else 2 if row.outcome == "inconclusive" else 3
    return rank, -(row.values.get("worse") or row.values.get("relative") or 0.0), row.name


def _overall(rows: list[Row]) -> Outcome:
    """FAIL with any failure; inconclusive where the step, or a metric that looks worse than its margin, is not resolved."""
    if any(r.outcome == "fail" for r in rows):
        return "fail"
    measured = [r for r in rows if r.name == STEP] or [r for r in rows if r.values.get("kind") == "ratio"]
    open_ones = [r for r in rows if r.outcome == "inconclusive" and (r.values.get("suspect") or r.values.get("missing"))]
    other = [r for r in rows if r.outcome == "inconclusive" and not r.values]
    return "inconclusive" if open_ones or other or not measured else "pass"


def _headline(outcome: Outcome, rows: list[Row], doubts: list[str]) -> str:
    if outcome == "fail":
        worst = [r for r in rows if r.outcome == "fail"]
        more = f", and {counted(len(worst) - 1, 'other metric')}" if len(worst) > 1 else ""
        return f"FAIL: {worst[0].name} {worst[0].text}{more}"
    if outcome == "inconclusive":
        if doubts:
            return f"INCONCLUSIVE: {'; '.join(doubts)}"
        worst = [r for r in rows if r.outcome == "inconclusive"]
        return f"INCONCLUSIVE: {worst[0].name} {worst[0].text}" if worst else "INCONCLUSIVE: the step time was not measured"
    step = next((r for r in rows if r.name == STEP), None)
    unresolved = sum(r.outcome == "inconclusive" for r in rows)
    rest = f"; {counted(unresolved, 'metric')} not resolved, none looks worse than its margin" if unresolved else ""
    return f"PASS: step {step.text}{rest}" if step else f"PASS: {counted(len(rows), 'metric')} within their margins{rest}"

"""Truth, baselines and scores of the planner's tables."""

import csv
import re
import statistics
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dtprof.plan.fit import Measured
from dtprof.plan.predict import Predictor, flops_per_token
from dtprof.plan.rates import rates_of
from dtprof.plan.row_words import number_of
from dtprof.plan.rows import CannotPredict, Row, parse
from dtprof.plan.sizes import active_params

# groups of layouts to choose from have so many at least
LEAST = 3
_GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A row of a table: its plan (None: cannot be predicted), its measured step and memory, its text."""

    table: str
    row: dict
    plan: Row | None
    seconds: float | None


def load(path):
    """The cases of a table; truth is the step, else tokens/s, else FLOP/s by the convention of the source."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    cases = []
    for row in rows:
        try:
            plan = parse(row)
        except CannotPredict:
            plan = None
        cases.append(Case(path.stem, row, plan, plan and measured(row, plan)))
    return cases


def measured(row, plan):
    step, tokens, tflops = (number_of(row.get(key)) for key in ("step_time_s", "tokens_s_gpu", "tflops_gpu"))
    if step:
        return step
    if tokens:
        return plan.layout.tokens / tokens / plan.cluster.gpus
    if tflops:
        return flops_per_token(plan) * plan.layout.tokens / (tflops * 1e12 * plan.cluster.gpus)
    return None


def of_cases(cases):
    return [Measured(case.plan, case.seconds) for case in cases if case.plan and case.seconds]


# FLOPs per token beside 6 N, over L h s: none, a causal mask's, the whole square's; over all of it where all is recomputed
SQUARES, AGAIN = (0.0, 6.0, 12.0), (1.0, 4 / 3)


def work(plan, square=6.0, again=4 / 3):
    """FLOPs of a step on one GPU."""
    model, layout = plan.model, plan.layout
    per_token = 6.0 * active_params(model) + square * model.layers * model.heads * model.head_dim * layout.seq
    return per_token * layout.tokens / plan.cluster.gpus * (again if layout.recompute == "full" else 1)


def ideal(plan, square, again):
    """Seconds of its FLOPs at the ceiling."""
    return work(plan, square, again) / rates_of(plan.cluster.gpu, plan.layout.precision).matmul


def constant(fitted, cases):
    """Seconds by a constant share of the ceiling, the median of the fitted, by the way to count FLOPs that fits these best."""
    ways = []
    for square in SQUARES:
        for again in AGAIN:
            shares = [ideal(c.plan, square, again) / c.seconds for c in fitted if c.seconds]
            share = statistics.median(shares)
            ways.append((statistics.mean(abs(one / share - 1) for one in shares), share, square, again))
    _, share, square, again = min(ways)
    return [ideal(case.plan, square, again) / share for case in cases]


def floors(cases):
    """For each case: its FLOPs and its layers, each times the passes of its pipeline with bubble."""
    out = []
    for case in cases:
        layout, model = case.plan.layout, case.plan.model
        passes = layout.microbatches + layout.pp - 1
        out.append([work(case.plan) / layout.microbatches * passes, model.layers / layout.pp * passes])
    return np.array(out)


def with_floor(fitted, cases):
    """Seconds by a constant rate, a constant time per layer and pass, and the bubble: two constants, least relative squares."""
    truth = np.array([case.seconds for case in fitted])
    constants, *_ = np.linalg.lstsq(floors(fitted) / truth[:, None], np.ones(len(truth)), rcond=None)
    return list(floors(cases) @ constants)


def spearman(first, second):
    ranks = [np.argsort(np.argsort(np.asarray(one))) for one in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def grouped(cases, predicted):
    """Mean Spearman and top-1 regret inside groups of equal model, GPUs and batch."""
    groups = defaultdict(lambda: defaultdict(list))
    for case, seconds in zip(cases, predicted, strict=True):
        keys = ("source", "model", "gpus", "gpu_type", "seq", "global_batch", "dtype")
        groups[tuple(case.row[key] for key in keys)][case.plan.layout].append((seconds, case.seconds))
    ranks, regrets = [], []
    for layouts in groups.values():
        # a layout that was measured twice counts with its mean
        pairs = [tuple(map(statistics.mean, zip(*alike, strict=True))) for alike in layouts.values()]
        if len(pairs) >= LEAST:
            ranks.append(spearman(*zip(*pairs, strict=True)))
            regrets.append(min(pairs)[1] / min(seconds for _, seconds in pairs) - 1)
    return ranks, regrets


def score(name, cases, predictor, baseline):
    """One row of the result; ``baseline``: seconds of the same cases."""
    cases = [case for case in cases if case.plan and case.seconds]
    rests = [predictor.estimate(case.plan) for case in cases]
    predicted = [seconds for _, seconds in rests]
    errors = [seconds / case.seconds - 1 for seconds, case in zip(predicted, cases, strict=True)]
    inside = [
        low <= case.seconds <= high for case, (rest, s) in zip(cases, rests, strict=True) for low, high in [rest.interval(s)]
    ]
    ranks, regrets = grouped(cases, predicted)
    return {
        "table": name,
        "n": len(cases),
        "error": statistics.mean(map(abs, errors)),
        "max_error": max(map(abs, errors)),
        "bias": statistics.mean(errors),
        "in_interval": statistics.mean(inside),
        "groups": len(ranks),
        "spearman": statistics.mean(ranks) if ranks else None,
        "top1_regret": statistics.mean(regrets) if regrets else None,
        "baseline_error": statistics.mean(abs(b / c.seconds - 1) for b, c in zip(baseline, cases, strict=True)),
    }


def memory(cases):
    """Peak memory against what was published; out of memory is what the notes of a table say was."""
    predictor, errors = Predictor(), []
    found = {"right": 0, "wrong": 0, "missed": 0}
    for case in cases:
        if case.plan is None:
            continue
        columns = predictor.row(case.row)
        peak = number_of(case.row.get("peak_mem_gb"))
        if peak:
            errors.append(float(columns["pred_peak_mem_gb"]) / peak - 1)
        ran_out = bool(re.search(r"\boom\b|out of memory", case.row.get("notes", "").lower())) and not case.seconds
        called = columns["fits"] == "false"
        if called or ran_out:
            found["right" if called and ran_out else "wrong" if called else "missed"] += 1
    called, were = found["right"] + found["wrong"], found["right"] + found["missed"]
    return {
        "n": len(errors),
        "error": statistics.mean(map(abs, errors)) if errors else None,
        "bias": statistics.mean(errors) if errors else None,
        "max_error": max(map(abs, errors), default=None),
        "oom_precision": found["right"] / called if called else None,
        "oom_recall": found["right"] / were if were else None,
        "called_out_of_memory": called,
    }

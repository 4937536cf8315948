"""How well the planner predicts published measurements.

    python benchmarks/layout.py DIR [--fit] [--plot FILE.svg] [--json]

DIR holds ``calibrate/`` and ``develop/``: tables with the columns of docs/planner.md. The shipped constants were fitted on
calibrate/ alone; ``--fit`` fits them again (two minutes), says where they differ, and adds vTrain with tensor-parallel degrees
of 4 and 8 after fitting on 1 and 2. Rows: {table, n, error (mean absolute), max_error, bias, in_interval (share of truths
inside the printed interval), groups, spearman and top1_regret (means inside groups of three layouts and more of equal source,
model, GPUs, batch), baseline_error}. The baseline is a constant share of the matmul ceiling, the median of the same table in
calibrate/, else of LLM-Foundry on A100, operations counted in the way that fits best; for vTrain a constant rate, a constant
time per layer, and the bubble. memory: {n, error, bias, max_error, oom_precision, oom_recall}. Agreement with vtrain_single is
agreement with a simulator.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from layout_score import constant, load, memory, of_cases, score, with_floor

from dtprof.plan.calibrated import calibration
from dtprof.plan.constants import NAMES, Constants
from dtprof.plan.fit import fit
from dtprof.plan.predict import Predictor
from dtprof.plan.time.step import Estimator

HOPPER = ("hopper_products",)
FITTED = ("vtrain_single", "megatron_lm_2021", "llm_foundry", "internevo_7b")
# fitted constants may differ from the shipped ones by rounding alone
SAME = 0.01


def gpu(case, name):
    return case.plan is not None and case.plan.cluster.gpu.name.startswith(name)


def fitted(folder):
    """The constants from calibrate/ alone: those of Ampere on all of its rows, then those of Hopper on its two."""
    tables = {name: load(folder / "calibrate" / f"{name}.csv") for name in FITTED}
    ampere = {name: of_cases(c for c in cases if not gpu(c, "H100")) for name, cases in tables.items()}
    found = fit(ampere, [name for name in NAMES if name not in HOPPER], Constants())
    hopper = of_cases(case for case in tables["llm_foundry"] if gpu(case, "H100"))
    return fit({"hopper": hopper}, HOPPER, found), ampere


def compared(found):
    shipped = Constants()
    return {name: {"fitted": getattr(found, name), "shipped": getattr(shipped, name)} for name in NAMES}


class Constant(Predictor):
    """Predicts with given constants instead of the shipped ones."""

    constants = Constants()

    def estimate(self, row):
        key = row.model, row.cluster, row.software
        if key not in self.known:
            self.known[key] = calibration(*key), Estimator(*key, self.constants)
        rests, estimator = self.known[key]
        return rests, estimator.step(row.layout).seconds


def split(folder, ampere, start):
    """vTrain with tp of 4 and 8 after fitting on rows with 1 and 2 alone."""
    few = [one for one in ampere["vtrain_single"] if one.row.layout.tp <= 2]
    found = fit({**ampere, "vtrain_single": few}, [name for name in NAMES if name not in HOPPER], start)
    cases = [case for case in load(folder / "develop/vtrain_single.csv") if case.plan.layout.tp > 2]
    known = [case for case in load(folder / "calibrate/vtrain_single.csv") if case.plan.layout.tp <= 2]
    predictor = Constant()
    predictor.constants = found
    return score("vtrain_single, tp 4 and 8 (fitted on 1 and 2)", cases, predictor, with_floor(known, cases))


def parts(name, cases):
    """Parts of a table that are told apart: by generation of GPU, experts or none."""
    kinds = {}
    for case in cases:
        if case.plan is None or not case.seconds:
            continue
        label = name
        if name in ("llm_foundry", "megatron_bridge", "fms_fsdp"):
            label += " " + case.plan.cluster.gpu.name.split()[0]
        if case.plan.model.moe is not None:
            label += ", experts"
        kinds.setdefault(label, []).append(case)
    return kinds


def scores(folder):
    rows, everything = [], []
    known = {path.stem: load(path) for path in sorted((folder / "calibrate").glob("*.csv"))}
    common = [case for case in known["llm_foundry"] if gpu(case, "A100")]
    for path in sorted((folder / "develop").glob("*.csv")):
        cases = load(path)
        everything += cases
        for label, mine in parts(path.stem, cases).items():
            alike = [case for case in known.get(path.stem, ()) if case.seconds and gpu(case, mine[0].plan.cluster.gpu.name[:4])]
            if path.stem == "vtrain_single":
                baseline = with_floor(alike, mine)
            else:
                baseline = constant(alike or common, mine)
            rows.append(score(label, mine, Predictor(), baseline))
            if label == "llm_foundry H100":
                rows.append(score(f"{label}, catalogue alone", mine, Predictor(catalogue=True), constant(common, mine)))
    return rows, memory(everything), everything


def text(result):
    lines = [f"{'table':46s}{'n':>5s}{'error':>8s}{'bias':>8s}{'baseline':>10s}{'inside':>8s}{'Spearman':>10s}{'regret':>8s}"]
    for row in result["rows"]:
        ranks = f"{row['spearman']:10.2f}{row['top1_regret']:8.1%}" if row["groups"] else ""
        line = f"{row['table']:46s}{row['n']:5d}{row['error']:8.1%}{row['bias']:+8.1%}{row['baseline_error']:10.1%}"
        lines.append(f"{line}{row['in_interval']:8.0%}{ranks}")
    whole = result["memory"]
    lines.append(f"{result['groups']} groups: Spearman {result['spearman']:.3f}, top-1 regret {result['top1_regret']:.1%}")
    lines.append(f"memory: {whole['n']} rows, error {whole['error']:.1%}, bias {whole['bias']:+.1%}")
    for name, pair in result.get("constants", {}).items():
        mark = "" if abs(pair["fitted"] / pair["shipped"] - 1) < SAME else "  differs"
        lines.append(f"  {name:20s} fitted {pair['fitted']:<9.4g} shipped {pair['shipped']:<9.4g}{mark}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not (args.folder / "develop").is_dir() or not (args.folder / "calibrate").is_dir():
        sys.exit(f"layout: {args.folder} has no calibrate/ and develop/")
    rows, peak, everything = scores(args.folder)
    many = sum(row["groups"] for row in rows)
    means = {key: sum(row["groups"] * row[key] for row in rows if row["groups"]) / many for key in ("spearman", "top1_regret")}
    result = {"rows": rows, "groups": many, **means, "memory": peak}
    if args.fit:
        found, ampere = fitted(args.folder)
        result["constants"] = compared(found)
        result["rows"].append(split(args.folder, ampere, found))
        result["fitted_errors"] = {
            name: statistics.quantiles(errors(table, found), n=20)[-1] for name, table in ampere.items() if len(table) > 4
        }
    if args.plot:
        from layout_plot import plot

        plot(args.plot, everything)
    sys.stdout.write(json.dumps(result, indent=1) + "\n" if args.json else "\n".join(text(result)) + "\n")


def errors(table, constants):
    """How far each row of a table is off, as a factor of 1 or more."""
    from dtprof.plan.fit import seconds

    truth = [one.seconds for one in table]
    return [max(p / t, t / p) for p, t in zip(seconds([one.row for one in table], constants), truth, strict=True)]


if __name__ == "__main__":
    main()

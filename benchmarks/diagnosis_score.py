"""Is a fault found, at its place, at its price? Plain functions of a report (``dtprof report --json``) and what is expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diagnosis_cases import MEASURED, NAMES, SETTINGS, Setting, places_of, planted, truth_of
from benchmarks.diagnosis_runs import Case
from dtprof.launch.pairs import step_times

WARM_UP = 4
# a truth below this many times the noise is no truth
ABOVE_NOISE = 3.0
LOUD = ("high", "medium")
# shares of the step that were measured are true of any run, as long as they accuse no rank; so is the scheduler's count
SHARES = ("comm.exposed", "comm.waiting")


class Noise:
    """Median steps of the healthy runs of each setting: what another run would have taken, and by how much they differ."""

    def __init__(self, cases: Iterable[Case], folder: Path) -> None:
        self._medians: dict[str, list[float]] = defaultdict(list)
        for case in cases:
            if not case.faults and (median := median_step(folder / case.name)) is not None:
                self._medians[case.setting].append(median)
        self._prices: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._all = [abs(a - b) for found in self._medians.values() for a, b in pairwise(found)]

    def note(self, setting: str, report: dict[str, Any]) -> None:
        """Keep what the findings of a healthy run cost."""
        for finding in report["findings"]:
            self._prices[setting, finding["rule"]].append(finding["seconds_per_step"] or 0.0)

    def anyway(self, setting: str, rule: str) -> float:
        """What a rule's finding costs without a fault, where the setting is such that it is true; s per step."""
        return float(np.mean(self._prices.get((setting, rule), [0.0]))) if rule in SETTINGS[setting].true else 0.0

    def usual(self, setting: str) -> float | None:
        """Median step of the setting without a fault, s."""
        found = self._medians.get(setting)
        return float(np.median(found)) if found else None

    def of(self, setting: str) -> float:
        """Largest difference of two healthy runs of the setting, s; that of all settings where it has fewer than two."""
        found = self._medians.get(setting, [])
        return max(found) - min(found) if len(found) > 1 else max(self._all, default=0.0)


def median_step(run: Path) -> float | None:
    """Median of a run's training steps outside the capture, slowest rank, s."""
    found = list(step_times(run, WARM_UP).values())
    return float(np.median(found)) / 1e9 if found else None


def rows_of(case: Case, report: dict[str, Any], noise: Noise, folder: Path) -> list[dict[str, Any]]:
    """One row per planted fault, or one without a fault; findings that are not true stand in the first."""
    setting = SETTINGS[case.setting]
    if not case.faults:
        noise.note(case.setting, report)
    false = untrue(setting, case.faults, report)
    rows = [_row(case, text, report, noise, folder) for text in case.faults] or [_healthy(case)]
    rows[0]["false"] = false
    return rows


def _healthy(case: Case) -> dict[str, Any]:
    empty = dict.fromkeys(("fault", "with", "found", "right_place", "price_error", "rule", "price_s", "truth_s"))
    return {"setting": case.setting, "job": SETTINGS[case.setting].job, **empty, "false": []}


def _row(case: Case, text: str, report: dict[str, Any], noise: Noise, folder: Path) -> dict[str, Any]:
    setting, alone = SETTINGS[case.setting], len(case.faults) == 1
    best = naming(setting, text, report["findings"])
    truth = truth_of(setting, text, case.faults)
    if truth == MEASURED:
        usual, found = noise.usual(case.setting), median_step(folder / case.name)
        truth = found - usual if alone and usual is not None and found is not None else None
    assert not isinstance(truth, str)
    if truth is not None and best is not None and best["rule"].startswith("checkpoint."):
        truth += noise.anyway(case.setting, best["rule"])
    known = truth is not None and truth > ABOVE_NOISE * noise.of(case.setting)
    price = None if best is None else best["seconds_per_step"]
    return {
        "setting": case.setting,
        "job": setting.job,
        "fault": text,
        "with": next((other for other in case.faults if other != text), None),
        "found": best is not None,
        "right_place": best is not None and at_place(setting, text, best),
        "price_error": price_error(price, truth, bound=best["bound"]) if known and best and price and truth else None,
        "rule": None if best is None else best["rule"],
        "price_s": price,
        "truth_s": truth,
        "false": [],
    }


def price_error(price: float, truth: float, *, bound: bool) -> float:
    """|price - truth| / truth; of a price that is a bound only what it lies too low."""
    return max(truth - price, 0.0) / truth if bound else abs(price - truth) / truth


def naming(setting: Setting, text: str, findings: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The finding that names a fault: at its place rather than elsewhere, then by the order of the rules expected."""
    rules = NAMES[planted(text).kind].rules
    told = [f for f in findings if f["rule"] in rules]
    return min(told, key=lambda f: (not at_place(setting, text, f), rules.index(f["rule"])), default=None)


def at_place(setting: Setting, text: str, finding: dict[str, Any]) -> bool:
    """Has a finding the ranks of the fault, and its words (stage, expert)? A fault of all is told of all ranks, or of none."""
    it, expected = planted(text), NAMES[planted(text).kind]
    said = " ".join([finding["title"], *(e["text"] for e in finding["evidence"])]).lower()
    if expected.words and expected.words.format(where=it.where) not in said:
        return False
    places = places_of(setting, it)
    if places is None:
        return len(finding["ranks"]) in (0, setting.ranks)
    return tuple(finding["ranks"]) in places


def untrue(setting: Setting, faults: tuple[str, ...], report: dict[str, Any]) -> list[str]:
    """High and medium findings that neither a planted fault, nor the setting itself, nor a measured share makes true."""
    found = []
    for f in report["findings"]:
        measured = f["rule"] == "host.no_core" or (f["rule"] in SHARES and 2 * len(f["ranks"]) > setting.ranks)
        known = f["rule"] in setting.true or measured
        if f["severity"] in LOUD and not known and not any(explains(setting, text, f) for text in faults):
            found.append(f"{f['severity']} {f['rule']} ranks {f['ranks']}: {f['title']}")
    return found


def explains(setting: Setting, text: str, finding: dict[str, Any]) -> bool:
    """Is a finding true because of this fault: it names it, or what follows from it, at its place?"""
    expected = NAMES[planted(text).kind]
    if finding["rule"] in expected.follows:
        places = places_of(setting, planted(text))
        return places is None or len(finding["ranks"]) == setting.ranks or tuple(finding["ranks"]) in places
    return finding["rule"] in expected.rules and at_place(setting, text, finding)


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Recall of single faults, of pairs (both named), prices, false findings."""
    single = [r for r in rows if r["fault"] and not r["with"]]
    pairs: dict[tuple[str, frozenset[str]], list[bool]] = defaultdict(list)
    for r in rows:
        if r["with"]:
            pairs[r["setting"], frozenset((r["fault"], r["with"]))].append(r["found"] and r["right_place"])
    errors = [r["price_error"] for r in single if r["price_error"] is not None]
    healthy = [r for r in rows if r["fault"] is None]
    return {
        "recall": _share([r["found"] for r in single]),
        "right_place": _share([r["right_place"] for r in single]),
        "pair_recall": _share([all(both) for both in pairs.values()]),
        "price_error_median": float(np.median(errors)) if errors else None,
        "price_error_max": max(errors, default=None),
        "priced": len(errors),
        "faults": len(single),
        "pairs": len(pairs),
        "false_findings": sum(len(r["false"]) for r in healthy),
        "false_findings_beside_faults": sum(len(r["false"]) for r in rows if r["fault"]),
        "healthy_runs": len(healthy),
    }


def _share(found: list[bool]) -> float | None:
    return sum(found) / len(found) if found else None

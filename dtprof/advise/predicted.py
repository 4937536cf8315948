"""Predictions for findings: the model of a run, made once, and what it says of an edit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from dtprof.advise.places import severity_of
from dtprof.edits import Edit
from dtprof.findings import Evidence, Finding, Severity
from dtprof.model.outcome import Outcome
from dtprof.model.whatif import what_if
from dtprof.numbers import interval, percent, time
from dtprof.protocols import Lens
from dtprof.run import Run
from dtprof.schema import DEVICE_KINDS

# a report waits for the model of a run with device work only up to this many device operations; dtprof whatif always does
MOST_DEVICE_OPERATIONS = 20_000
# what one rank's repair would save: the model has all ranks in step, as workers of a parameter server are not
_REPAIRED = ("straggler.compute_rank", "straggler.host_rank", "straggler.late_entry")
_outcomes: WeakKeyDictionary[Run, dict[tuple[Edit, ...], Outcome]] = WeakKeyDictionary()


def outcome(run: Run, edits: Sequence[Edit]) -> Outcome | None:
    """What the model of a run says of some edits; None where making the model would keep a report waiting."""
    key = tuple(edits)
    kept = _outcomes.setdefault(run, {})
    if key not in kept:
        operations = sum(int(run.table("events", p.ordinal).is_("kind", *DEVICE_KINDS[:3]).sum()) for p in run.parts)
        if operations > MOST_DEVICE_OPERATIONS:
            return None
        kept[key] = what_if(run, key)
    return kept[key]


def predicted(run: Run, edits: Sequence[Edit]) -> Outcome | None:
    """The outcome where it holds a prediction; None where that is withheld, or would keep a report waiting."""
    found = outcome(run, edits)
    return found if found is not None and found.predicted_ns is not None else None


def notes_of(found: Outcome) -> tuple[Evidence, ...]:
    """What the model says beside its number, as evidence."""
    return tuple(Evidence(f"{note[0].upper()}{note[1:]}.") for note in found.notes)


def with_prediction(study: Lens, finding: Finding) -> Finding:
    """The finding of one slow rank with what repairing it would save, where the model of the run may be believed."""
    if finding.rule not in _REPAIRED or len(finding.ranks) != 1 or finding.prediction is not None:
        return finding
    found = outcome(study.run, [Edit("ideal.rank", finding.ranks[0])])
    saving = found.saving() if found is not None else None
    if found is None or saving is None or saving.seconds_per_step <= 0:
        return finding
    return replace(finding, prediction=saving, next=f"{finding.next}. Repaired: {in_words(found)}")


def severity_of_saving(found: Outcome) -> Severity:
    """Severity of what is only predicted: by the share of the step that is saved at least."""
    saving = found.saving()
    return severity_of(1e9 * saving.low / (found.measured_ns or 1.0)) if saving is not None else "low"


def in_words(found: Outcome) -> str:
    """``58.1 ms per step instead of 78.4 ms, −26% (57.0 to 59.3 ms; replay error 0.8%)``; empty where withheld."""
    if found.predicted_ns is None or found.low_ns is None or found.high_ns is None or not found.measured_ns:
        return ""
    gain = found.predicted_ns / found.measured_ns - 1
    record = f"{interval(found.low_ns, found.high_ns)}; replay error {percent(found.replay_error)}"
    now = f"{time(found.predicted_ns)} per step instead of {time(found.measured_ns)}"
    return f"{now}, {'−' if gain < 0 else '+'}{percent(abs(gain))} ({record})"

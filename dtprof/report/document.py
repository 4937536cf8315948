"""The report as one JSON document: schema 1, all times integers in nanoseconds, null where not known."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from dtprof.analyse.results import KernelResult, Operation, PartAccount, StepAccount
from dtprof.findings import Evidence, Finding
from dtprof.protocols import Lens
from dtprof.report import goodput, memory, parallel
from dtprof.report.facts import Facts, gather

SCHEMA = 1
TOP_KERNELS = 20
EVENTS_PER_EVIDENCE = 1000


def document(study: Lens) -> dict[str, Any]:
    """The document of a study."""
    return document_of(gather(study))


def document_of(facts: Facts) -> dict[str, Any]:
    """The document of facts that are gathered already."""
    run = facts.run
    whole: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "source": {
                "path": str(run.path),
                "format": run.format,
                "world_size": run.world_size,
                "ranks": run.ranks,
                "steps": facts.steps,
            },
            "verdict": asdict(facts.verdict),
            "ranks": [_rank(facts, account) for account in facts.accounting.parts],
            "collectives": [_collective(operation) for operation in facts.comm.operations],
            "findings": [_finding(finding) for finding in facts.findings],
            "kernels": _kernels(facts.kernels),
            "memory": memory.document(facts.memory),
            "goodput": goodput.document(facts.goodput),
            **parallel.document(facts.parallel),
            "quality": [
                {"rank": q.rank, "part": q.part, "source": q.source, "what": q.what, "count": q.count, "effect": q.effect}
                for q in facts.quality
            ],
            "own_cost": _own_cost(run.manifest.own_cost),
            "verdicts": [msgspec.to_builtins(row) for row in facts.verdicts],
        }
    )
    return whole


def plain(value: Any) -> Any:
    """The same value in JSON's own types: numpy numbers become Python's, what is no finite number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rank(facts: Facts, account: PartAccount) -> dict[str, Any]:
    part = facts.parts.get(account.part)
    return {
        "rank": account.rank,
        "part": account.part,
        "source": part.source if part else None,
        "device": asdict(account.device),
        "host": asdict(account.host),
        "steps": [_step(step) for step in account.steps],
        "unreliable": account.unreliable or None,
    }


def _step(step: StepAccount) -> dict[str, Any]:
    return {
        "step": step.step,
        "complete": step.complete,
        "dur_ns": step.dur_ns,
        "accounting": dict(step.accounting),
        "comm_hidden_ns": step.comm_hidden_ns,
        "message_wait_ns": step.message_wait_ns,
        "copy_hidden_ns": step.copy_hidden_ns,
        "recompute_ns": step.recompute_ns,
        "ts_ns": step.ts,
        "clock": "device" if step.on_device else "host",
        "kind": step.kind,
        "marked": step.marked,
    }


def _collective(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "op": operation.op,
        "kind": "one-sided" if operation.one_sided else "collective",
        "group": operation.group,
        "seq": operation.seq,
        "n": operation.n,
        "n_present": operation.n_present,
        "size_bytes": operation.bytes,
        "size_known": operation.bytes_known,
        "first_start_ns": operation.first_start_ns,
        "end_ns": operation.end_ns,
        "transfer_ns": operation.transfer_ns,
        "transfer_upper_ns": operation.transfer_upper_ns,
        "wait_ns": _waits(operation.wait_ns),
        "dur_ns": {str(rank): dur for rank, dur in operation.dur_ns.items()},
        "last_arriver": operation.last_rank,
        "last_by_ns": operation.last_by_ns,
        "start_skew_ns": operation.start_skew_ns,
        "end_skew_ns": operation.end_skew_ns,
        "algbw_gb_s": operation.algbw_gb_s,
        "busbw_gb_s": operation.busbw_gb_s,
        "matched_by": operation.matched_by,
        "capture_start": operation.capture_start,
        "step": operation.step,
        "label": operation.label,
    }


def _waits(waits: dict[int, int | None]) -> dict[str, int] | None:
    """Waiting by rank; None where it cannot be told (ranks missing, one-sided operations)."""
    known = {str(rank): wait for rank, wait in waits.items() if wait is not None}
    return known if len(known) == len(waits) else None


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "ranks": list(finding.ranks),
        "steps": list(finding.steps),
        "seconds_per_step": finding.seconds_per_step,
        "bound": finding.bound,
        "share": finding.share,
        "evidence": [_evidence(e) for e in finding.evidence],
        "edit": finding.edit,
        "prediction": asdict(finding.prediction) if finding.prediction else None,
        "why": finding.why,
        "next": finding.next,
        "apply": finding.apply,
        "verify": finding.verify,
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    rows = {str(part): [int(r) for r in rows[:EVENTS_PER_EVIDENCE]] for part, rows in evidence.events.items()}
    return {"text": evidence.text, "event_count": evidence.count, "events": rows}


def _kernels(kernels: KernelResult) -> dict[str, Any]:
    rows = sorted(kernels.rows, key=lambda k: -k.total_ns)
    return {
        "names": len(rows),
        "classes": dict(kernels.classes),
        "short_share": kernels.short_share,
        "launches_without_kernel": {str(p): n for p, n in kernels.launches_without_kernel.items()},
        "kernels_without_launch": {str(p): n for p, n in kernels.kernels_without_launch.items()},
        "top": [
            {key: getattr(k, key) for key in ("name", "kind", "count", "total_ns", "median_ns", "share")}
            for k in rows[:TOP_KERNELS]
        ],
    }


def _own_cost(cost: dict[str, float] | None) -> dict[str, float | None] | None:
    return None if cost is None else {**cost, **{key: cost.get(key) for key in ("fraction", "low", "high")}}

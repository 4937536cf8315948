"""Findings ranked by what they cost, and the three lines that everybody sees first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dtprof.advise.places import per_rank, ranks_of, step_ns, timed_steps, who
from dtprof.advise.predicted import with_prediction
from dtprof.advise.rules import RULES
from dtprof.analyse.memory import MemoryResult
from dtprof.analyse.results import AccountingResult, CommResult, PartAccount, settled
from dtprof.analyse.stragglers import StragglerResult, least_share
from dtprof.analyse.waiting import WaitingResult
from dtprof.findings import SEVERITIES, Finding, Verdict
from dtprof.ingest.kineto.damage import FLAWS, GZIP_BAD, GZIP_CUT, TRUNCATED
from dtprof.numbers import counted, interval, memory, named, percent, time
from dtprof.plugins import loaded
from dtprof.protocols import Lens, Rule

_WAITING_RULES = ("straggler.", "comm.waiting")
# what a share of the step is called in a verdict
SHARE_WORDS = {
    "compute_ns": "computing",
    "copy_exposed_ns": "exposed copies",
    "comm_wait_ns": "waiting for late ranks",
    "comm_transfer_ns": "moving data",
    "comm_unsplit_ns": "exposed communication",
    "idle_host_ns": "idle because nothing has been launched",
    "idle_dependency_ns": "idle on dependencies",
    "idle_input_ns": "waiting for input",
    "idle_checkpoint_ns": "waiting for checkpoints",
    "idle_other_ns": "idle for reasons that cannot be told",
}
# on a CPU job nothing is launched: idle is what no operator of the training threads covers
_HOST_WORDS = {**SHARE_WORDS, "idle_host_ns": "outside any recorded operator"}
_LEAD_SHARE = 0.05
# a loss from this share on is no healthy step, whether a rule explains it or not
_UNHEALTHY_SHARE = 0.25


def rules() -> list[Rule]:
    """Built-in rules, then those of plugins."""
    return [*RULES, *(p.value() for p in loaded("rules") if p.value is not None)]


def findings(study: Lens) -> list[Finding]:
    """All findings: by severity, then by seconds per step."""
    found = [with_prediction(study, finding) for rule in rules() for finding in rule.find(study)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), -(f.seconds_per_step or 0.0)))


def verdict(study: Lens, found: list[Finding] | None = None) -> Verdict:
    """Header, VERDICT, WHY and NEXT of a run; files that were cut off come first in NEXT."""
    told = _verdict(study, found)
    return replace(told, next=(*_cut_off(study), *told.next))


def _cut_off(study: Lens) -> list[str]:
    """A file that ends too early says nothing of what came later: every share lacks it."""
    cut = set()
    for part in study.run.parts:
        rows = study.run.table("quality", part.ordinal)
        if rows.is_("what", FLAWS[TRUNCATED], GZIP_CUT, GZIP_BAD).any():
            cut.add(part.rank if part.rank is not None else -1 - part.ordinal)
    if not cut:
        return []
    return [
        f"capture again: the trace of {who(sorted(cut))} is cut off, and what came after the cut is in none of these numbers"
    ]


def _verdict(study: Lens, found: list[Finding] | None) -> Verdict:
    accounting: AccountingResult = study.result("accounting")
    found = findings(study) if found is None else found
    head = header(study)
    if still := next((f for f in found if f.rule.startswith("hang.")), None):
        return Verdict(head, still.title, still.why, (still.next,))
    if not any(p.steps for p in accounting.parts):
        return _without_steps(head, study)
    shares = accounting.mean_shares()
    lead = _lead(found, ranks_of(accounting))
    if lead is None:
        return _healthy(head, study, shares)
    share, text = _headline(lead, study, shares)
    return Verdict(head, text, lead.why, (lead.next, *_larger(share, lead, found, shares, _words(accounting))))


def _words(accounting: AccountingResult) -> dict[str, str]:
    words = SHARE_WORDS if accounting.on_device else _HOST_WORDS
    steps = [s for p in accounting.parts for s in settled(p.steps)]
    waited = sum(s.accounting["comm_wait_ns"] for s in steps)
    for_messages = 2 * sum(s.message_wait_ns for s in steps) > waited
    return {**words, "comm_wait_ns": "waiting for messages of other ranks"} if for_messages else words


def header(study: Lens) -> str:
    """The line of facts above the verdict."""
    accounting: AccountingResult = study.result("accounting")
    comm: CommResult = study.result("comm")
    run = study.run
    steps = [s for p in accounting.parts for s in settled(p.steps)]
    numbers = {s.step for s in steps}
    bits = []
    if steps:
        by_step = [float(np.mean([s.dur_ns for s in steps if s.step == n])) for n in sorted(numbers)]
        what = f"median of {len(by_step)}" if len(by_step) > 1 else "one step captured"
        lengths = [float(s.dur_ns) for s in steps]
        apart = len(by_step) == 1 and max(lengths) > 1.05 * min(lengths)
        spread = f" ({interval(min(lengths), max(lengths))} over the ranks)" if apart else ""
        bits.append(f"step {time(float(np.median(by_step)))}{spread}, {what}")
    present, world = len(run.ranks), run.world_size
    if present:
        bits.append(counted(present, "rank") if not world or world == present else f"{present} of {counted(world, 'rank')}")
    else:
        bits.append(counted(len(run.parts), "process", "processes") + " without a rank")
    recordings = len({p.attempt for p in run.parts})
    bits += [f"{recordings} attempts or recordings, not compared"] if recordings > 1 else []
    bits += [comm.backend] if comm.backend else []
    if run.manifest.devices:
        bits.append(", ".join(run.manifest.devices))
    cost = run.manifest.own_cost
    told = f"own cost {percent(cost.get('fraction'))} (bound {percent(cost.get('high'))})" if cost else "own cost not known"
    bits.append(told)
    return " · ".join(bits)


def _lead(found: list[Finding], ranks: tuple[int, ...]) -> Finding | None:
    """The finding that the verdict is about: one that names culprits before one that concerns everybody."""
    worth = [f for f in found if (f.share or 0) >= _LEAD_SHARE and f.severity != "low"]
    blamed = [f for f in worth if f.ranks and set(f.ranks) < set(ranks)]
    pick = blamed or worth
    return max(pick, key=lambda f: f.seconds_per_step or 0.0) if pick else None


def _headline(lead: Finding, study: Lens, shares: dict[str, float]) -> tuple[float, str]:
    """(share of the step, sentence) of the verdict."""
    accounting: AccountingResult = study.result("accounting")
    waiting: WaitingResult = study.result("waiting")
    whole, ranks = step_ns(accounting), ranks_of(accounting)
    waited = shares["comm_wait_ns"]
    if not lead.rule.startswith(_WAITING_RULES) or waited < _LEAD_SHARE / 2 or not waiting.by_culprit:
        return lead.share or 0.0, lead.title
    of = f"of the step (mean of {counted(len(ranks), 'rank')})"
    total = sum(waiting.by_culprit.values())
    mine = sum(waiting.by_culprit.get(r, 0.0) for r in lead.ranks)
    victim = max(waiting.by_victim, key=lambda r: waiting.by_victim[r])
    means = per_rank(accounting, "comm_wait_ns", *[k for k in SHARE_WORDS if k != "comm_wait_ns"])
    most = f"{named('rank', [victim])} waits {percent(waiting.by_victim[victim] / means.get(victim, whole))}"
    if mine >= 0.95 * total:
        return waited, f"{percent(waited)} {of} is waiting for {named('rank', lead.ranks)}; {most}"
    return (
        waited,
        f"{percent(waited)} {of} is waiting for late ranks, {percent(mine / total)} of it for "
        f"{named('rank', lead.ranks)}; {most}",
    )


def _larger(share: float, lead: Finding, found: list[Finding], shares: dict[str, float], words: dict[str, str]) -> list[str]:
    """The largest loss is named even when it is not the one with a culprit."""
    told = max(share, lead.share or 0.0)
    other = max((f for f in found if f is not lead), key=lambda f: f.share or 0.0, default=None)
    losses = {k: v for k, v in shares.items() if k not in ("compute_ns", "comm_wait_ns")}
    key = max(losses, key=lambda k: losses[k])
    if max(losses[key], (other.share or 0.0) if other else 0.0) <= told:
        return []
    if other is None or (other.share or 0.0) < losses[key] - 0.01:
        return [f"larger still: {percent(losses[key])} of the step is {words[key]}"]
    number = found.index(other) + 1
    what = (
        f"{percent(losses[key])} of the step is {words[key]}" if abs((other.share or 0.0) - losses[key]) < 0.01 else other.title
    )
    return [f"larger still: {what[0].lower()}{what[1:]} (finding {number})"]


def _without_steps(head: str, study: Lens) -> Verdict:
    """No step can be accounted for: say what the whole window held, or how long the steps were that only the clock saw."""
    if study.run.format == "snapshot":
        return _of_snapshot(head, study)
    accounting: AccountingResult = study.result("accounting")
    busy = [p for p in accounting.parts if p.device.span_ns]
    nothing = "capture with steps marked: profile with prof.step() after every step"
    timed = timed_steps(study.run)
    if not busy and timed:
        text = f"{counted(len(timed), 'step')} timed, median {time(float(np.median(timed)))}; nothing inside a step is recorded"
        return Verdict(
            head, text, "there is no trace of any whole step", ("choose a capture window that the loop reaches and passes",)
        )
    if not busy:
        return Verdict(
            head, "no steps are marked and no device work is recorded", "there is nothing to account for", (nothing,)
        )

    def share(part: PartAccount, ns: int) -> float:
        return ns / part.device.span_ns

    idle = float(np.mean([share(p, p.device.idle_ns) for p in busy]))
    exposed = float(np.mean([share(p, p.device.exposed_comm_ns) for p in busy]))
    compute = float(np.mean([share(p, p.device.compute_ns) for p in busy]))
    doubt = next((p.unreliable for p in busy if p.unreliable), "")
    text = (
        f"over the whole window the device computes {percent(compute)}, exposed communication takes "
        f"{percent(exposed)}, {percent(idle)} is idle"
    )
    if doubt:
        text = "idle and busy times of this trace cannot be trusted"
    return Verdict(head, text, doubt or "no steps are marked, so nothing can be said per step", (nothing,))


def _of_snapshot(head: str, study: Lens) -> Verdict:
    """An allocator snapshot has no time in it: say what the device's memory is taken by."""
    found: MemoryResult = study.result("memory")
    held = found.parts[0].fragmentation if found.parts else None
    if held is None:
        return Verdict(head, "the snapshot holds no segment", "nothing was allocated", ("record it while the job trains",))
    waits = f", {memory(held.pending)} wait to be freed" if held.pending else ""
    live = held.allocated - (held.pending or 0)
    text = f"{memory(live)} of the {memory(held.reserved)} that the allocator holds are live{waits}"
    why = f"{percent(held.share)} is free inside its segments, {memory(held.held)} of that beside live blocks"
    after = "an allocator snapshot tells nothing of time; for that, capture steps"
    return Verdict(head, text, why, (after,))


def _healthy(head: str, study: Lens, shares: dict[str, float]) -> Verdict:
    """Nothing found: say so, and what would not have been seen."""
    accounting: AccountingResult = study.result("accounting")
    stragglers: StragglerResult = study.result("stragglers")
    words = _words(accounting)
    parts = sorted(shares.items(), key=lambda item: -item[1])[:3]
    budget = ", ".join(f"{percent(v)} {words[k]}" for k, v in parts if v >= 0.01)
    doubt = next((p.unreliable for p in accounting.parts if p.unreliable), "")
    if doubt:
        return Verdict(
            head, "idle and busy times of this trace cannot be trusted", doubt, ("capture again with all kernels recorded",)
        )
    if stragglers.abstained:
        limit = f"whether a rank is slow could not be told: {stragglers.abstained}"
    else:
        limit = (
            f"compared {counted(stragglers.steps, 'step')} of {counted(len(ranks_of(accounting)), 'rank')}; "
            f"a rank less than {percent(least_share(stragglers.steps))} slower than its peers would not be seen"
        )
    key = max((k for k in shares if k != "compute_ns"), key=lambda k: shares[k])
    if shares[key] >= _UNHEALTHY_SHARE:
        text = f"no rule names a cause; the step is {budget}"
        return Verdict(head, text, limit, (f"look at what happens in the {percent(shares[key])} that is {words[key]}",))
    return Verdict(
        head, f"nothing stands out; the step is {budget}", limit, ("nothing to do; report again when the step time changes",)
    )

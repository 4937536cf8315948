"""Communication: waiting and moving told apart, who waits, each group, who talks to whom, size against time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from html import escape

from dtprof.advise.rules.comm_bandwidth import LEAST_BYTES, Reached
from dtprof.analyse.links import LinksResult
from dtprof.analyse.results import Operation
from dtprof.numbers import NOT_KNOWN, Scale, count, counted, fixed, percent, size, time
from dtprof.report.budget import MANY
from dtprof.report.charts.matrix import Cell, log_level, matrix_figure
from dtprof.report.charts.sizes import Fit, fits, known, sizes_figure
from dtprof.report.html import ENDS_TOGETHER, STRIPED, UNSPLIT
from dtprof.report.html_tables import operations_table
from dtprof.report.operations import group_words, op_words, select, wait_sum
from dtprof_dashboards import show
from dtprof_dashboards.links import counters, group_rows, link_rows, pair_rows, pairs
from dtprof_dashboards.view import Page, View

FEW_POINTS, MOST_GROUPS = 6, 24
UNJUDGED = "operations that do not end together on all ranks, or belong to no step, are not judged"


def render(view: View) -> None:
    """Draw the page."""
    facts = view.facts
    show.title("Communication", view.meta)
    everything = facts.comm.operations
    if not everything:
        what = "No collective and no point-to-point operation is among the events that were recorded."
        how = "dtprof run --capture 5:8 -- torchrun --nproc_per_node=2 train.py"
        if len(facts.run.parts) < 2:
            how = f"One process has nobody to talk to; with several, capture steps:\n{how}"
        elif facts.settled_steps:
            how = (
                "Calls of torch.distributed.rpc, and what other libraries send, leave none in a trace: the Timeline shows such "
                "calls by their names, and how long they last is part of the step."
            )
        show.nothing("No communication in this run", what, how)
        return
    exposed = {k: v for k, v in facts.accounting.mean_shares().items() if k.startswith("comm_") and v}
    told = {"comm_wait_ns": "waiting", "comm_transfer_ns": "moving data", "comm_unsplit_ns": "not split"}
    shares = ", ".join(f"{told[k]} {percent(v)}" for k, v in exposed.items())
    otherwise = (
        f"{percent(sum(exposed.values()))} of the step is exposed communication" if exposed else "No communication is exposed"
    )
    show.verdict_of(view.found("comm.", "ddp."), otherwise, f"of the step: {shares}" if shares else "")
    step = view.choose_step("every step")
    operations = [o for o in everything if step is None or o.step == step]
    if not operations:
        show.nothing(f"No operation in step {step}", "Choose another step, or all of them.")
        return
    _operations(view, operations)
    _who_waits(operations)
    _groups(view, operations)
    _links(view, operations, step)
    _sizes(operations)


def _operations(view: View, operations: list[Operation]) -> None:
    facts = replace(view.facts, comm=replace(view.facts.comm, operations=tuple(operations)))
    chosen = select(operations)
    split = [o.transfer_ns is not None for o in chosen.operations]
    sub = (ENDS_TOGETHER if all(split) else ENDS_TOGETHER + STRIPED) if any(split) else UNSPLIT
    show.section(chosen.heading, f"{sub} {escape(chosen.sentence)}", operations_table(facts, chosen))


def _who_waits(operations: list[Operation]) -> None:
    chosen = [o for o in select(operations).operations if wait_sum(o) is not None]
    ranks = sorted({rank for o in chosen for rank in o.wait_ns})
    if not chosen or len(ranks) < 2:
        return
    drawn = ranks[:MANY]
    top = max(w for o in chosen for w in o.wait_ns.values() if w is not None)
    scale = Scale.of([top])
    rows = [(f"{o.id} {op_words(o.op)}", [_wait_cell(o, rank, top, scale) for rank in drawn]) for o in chosen]
    left = f" The first {MANY} of {len(ranks)} ranks." if len(ranks) > MANY else ""
    sub = f"Waiting of each rank in each operation, {scale.unit}; last ▶ is the rank that the others wait for.{left}"
    heads = [f"rank {rank}" for rank in drawn]
    figure = matrix_figure(rows, heads, "comm_wait_ns", show.FULL, "Waiting by operation and rank")
    show.section("Who waits", escape(sub), show.figure(figure))


def _wait_cell(operation: Operation, rank: int, top: int, scale: Scale) -> Cell:
    who = f"rank {rank} · operation {operation.id}"
    if rank not in operation.wait_ns:
        return Cell(None, "", f"{who} · takes no part")
    wait = operation.wait_ns[rank]
    go = "" if operation.step is None else f"page=timeline&rank={rank}&step={operation.step}"
    if rank == operation.last_rank:
        return Cell(None, "last ▶", f"{who} · arrives last, waits for nobody", bold=True, go=go)
    return Cell(log_level(wait or 0, top), scale.text(wait), f"{who} · waits {time(wait)}", go=go)


def _groups(view: View, operations: list[Operation]) -> None:
    by_group: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in operations:
        by_group[(operation.group, operation.op)].append(operation)
    sums = {key: _sums(found) for key, found in by_group.items()}
    scale = Scale.of(v for found in sums.values() for v in found[:3])
    ordered = sorted(by_group, key=lambda key: -sum(sum(o.dur_ns.values()) for o in by_group[key]))[:40]
    rows, reasons = [], dict[str, None]()
    for key in ordered:
        may = view.opened.bandwidth.get((key[1], key[0]), UNJUDGED)
        if isinstance(may, str):
            reasons[may] = None
        found, (spent, wait, move) = by_group[key], sums[key]
        moved = [o.bytes for o in found if o.bytes and o.bytes_known != "unknown"]
        rates = sorted(o.busbw_gb_s for o in found if o.busbw_gb_s is not None)
        rows.append(
            [
                group_words(key[0]) if key[0] else "group not known", op_words(key[1]), count(len(found)),
                size(sum(moved)) if moved else NOT_KNOWN, scale.text(spent), scale.text(wait), scale.text(move),
                fixed(rates[len(rates) // 2], 2) if rates else NOT_KNOWN,
                NOT_KNOWN if isinstance(may, str) else _allowed(may),
                NOT_KNOWN if isinstance(may, str) else percent(may.share),
            ]
        )  # fmt: skip
    unit = scale.unit
    heads = ["group", "operation", "count", "bytes", f"in it, {unit}", f"waiting, {unit}", f"moving, {unit}", "busbw, GB/s"]
    heads += ["expected, GB/s", "reached"]
    sub = (
        "Summed over operations and ranks; moving is counted on every rank. busbw: median, by nccl-tests’ convention. "
        f"Expected: what the group’s links allow; reached: its operations of {size(LEAST_BYTES)} or more that travel alone, "
        "by that."
    )
    if reasons:
        sub += f" Not known: {'; '.join(reasons)}."
    show.section("By group and operation", escape(sub), show.table(heads, rows, range(2, 10)))


def _allowed(found: Reached) -> str:
    """Bus bandwidth that the links allow, GB/s."""
    low, high = (fixed(gb_s, 2) for gb_s in found.allowed_gb_s)
    return low if low == high else f"{low} to {high}"


def _sums(found: list[Operation]) -> tuple[float, float | None, float | None]:
    """Time in the operations, waiting and moving, summed over the ranks; None where no operation tells."""
    waits = [w for o in found if (w := wait_sum(o)) is not None]
    moves = [o.transfer_ns * len(o.dur_ns) for o in found if o.transfer_ns is not None]
    return sum(sum(o.dur_ns.values()) for o in found), sum(waits) if waits else None, sum(moves) if moves else None


def _links(view: View, operations: list[Operation], step: int | None) -> None:
    """Who talks to whom: messages by sender and receiver, collectives by group and member, counters of links."""
    title, run = "Who talks to whom", view.facts.run
    every = sorted({o.step for o in operations if o.step is not None})
    many = len(every) or 1
    drawn = list(run.ranks)[:MANY]
    found, lost = pairs(run, None if step is None else [step])
    found = [pair for pair in found if {pair.src, pair.dst} <= set(drawn)]
    if found:
        sub = (
            "Bytes of messages per step, by sender and receiver. The title of a cell has the bandwidth of its best receive, "
            "which waits as well, so a link is at least that fast."
        )
        sub += f" Of {counted(lost, 'message')} the peer cannot be told." if lost else ""
        rows = pair_rows(found, many, drawn)
        heads = [f"to rank {rank}" if i == 0 else str(rank) for i, rank in enumerate(drawn)]
        figure = matrix_figure(rows, heads, "comm_transfer_ns", show.FULL, "Bytes by sender and receiver")
        show.section(title, escape(sub), show.figure(figure))
        title = "Groups and their members"
    groups = group_rows(run, operations, many, drawn)[:MOST_GROUPS]
    if groups:
        sub = (
            "Bytes of collectives per step, by group and member. Which of them pass between which two members is the "
            "algorithm’s choice, and in no trace."
        )
        heads = [f"rank {rank}" if i == 0 else str(rank) for i, rank in enumerate(drawn)]
        figure = matrix_figure(groups, heads, "comm_transfer_ns", show.FULL, "Bytes by group and member")
        show.section(title, escape(sub), show.figure(figure))
    measured: LinksResult = view.opened.result("links")
    if measured.links:
        sub = (
            "What TCP sent from host to host while it had something to send, by sender and receiver; bold: slow beside the "
            "others. Bytes per step are in the title of a cell."
        )
        heads = [f"to rank {rank}" if i == 0 else str(rank) for i, rank in enumerate(drawn)]
        figure = matrix_figure(
            link_rows(measured, drawn), heads, "comm_transfer_ns", show.FULL, "Bandwidth of links between hosts"
        )
        show.section("Links between hosts", escape(sub), show.figure(figure))
    read = counters(run)
    if read:
        sub = "Read by NVML once a second: all links of a device together."
        show.section("What the links carried", sub, show.table(["", "counter", "mean", "most"], read, {2, 3}))
    if not found and not groups and not measured.links:
        show.nothing(title, "The sizes of operations were not recorded, or no operation belongs to a known group.")


def _sizes(operations: list[Operation]) -> None:
    usable = known(operations)
    if not usable:
        show.nothing(
            "Size against time is not known",
            "It needs the sizes of operations and transfers told from waiting: every rank of a group, with sizes recorded.",
        )
        return
    lines = fits(usable)
    sub = f"{count(len(usable))} operations; {_said(lines)}"
    show.section("Transfer time by size", escape(sub), show.figure(sizes_figure(usable, lines, 720.0)))


def _said(lines: list[Fit]) -> str:
    if not lines:
        return "all have one size, so no line can be fitted."
    few = any(line.points < FEW_POINTS for line in lines)
    return "the line of each kind: latency + bytes / bandwidth." + (" Few points: no interval is given." if few else "")


def _note(view: View) -> str:
    return "" if view.facts.comm.operations else "none"


PAGE = Page("communication", "Communication", "Analyse", render, _note)

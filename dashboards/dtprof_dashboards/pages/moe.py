"""MoE: tokens of each expert in each layer."""

from __future__ import annotations

from html import escape

import numpy as np

from dtprof.numbers import count, digits, percent
from dtprof.report.charts.matrix import Cell, matrix_figure
from dtprof_dashboards import selection, show
from dtprof_dashboards.view import Page, View


def render(view: View) -> None:
    """Draw the page."""
    show.title("MoE", view.meta)
    every = view.opened.experts
    if not every:
        show.nothing(
            "No experts in this run",
            "The metric `moe_tokens` (tokens by layer and expert) was not recorded.",
            "A job records it with dtprof's metric of that name; the sample does:\ndtprof job moe --ranks 2",
        )
        return
    layers = sorted({layer for _, layer, _, _ in every})
    experts = sorted({expert for _, _, expert, _ in every})
    _said(view, _mean(every, None, layers, experts), experts)
    steps: list[int | None] = [None, *sorted({step for step, *_ in every})]
    step = selection.choose("step", "Step", steps, lambda s: "mean of all" if s is None else f"step {s}")
    held = _mean(every, step, layers, experts)
    ratio = {layer: _imbalance(row) for layer, row in held.items()}
    _heat(held, experts)
    rows = [
        [layer, count(round(sum(row))), str(experts[int(np.argmax(row))]), digits(ratio[layer]),
         str(sum(1 for v in row if v == 0))]
        for layer, row in held.items()
    ]  # fmt: skip
    heads = ["layer", "tokens per step", "busiest expert", "times the even share", "experts without a token"]
    show.section("Balance", "", show.table(heads, rows, {1, 2, 3, 4}))


def _said(view: View, held: dict[str, list[float]], experts: list[int]) -> None:
    """The verdict, over all steps."""
    worst = max(held, key=lambda layer: _imbalance(held[layer]))
    share = max(held[worst]) / (sum(held[worst]) or 1)
    busiest = experts[int(np.argmax(held[worst]))]
    show.verdict_of(
        view.found("moe."),
        f"The busiest expert takes {digits(_imbalance(held[worst]))} times the even share",
        f"layer {worst}: expert {busiest} takes {percent(share)} of the tokens of {len(experts)} experts, mean of all steps; "
        "a synchronous step waits for the busiest",
    )


def _mean(
    every: list[tuple[int, str, int, float]], step: int | None, layers: list[str], experts: list[int]
) -> dict[str, list[float]]:
    """Layer -> mean tokens per step of each expert."""
    mine = [row for row in every if step is None or row[0] == step]
    steps = len({row[0] for row in mine}) or 1
    sums: dict[tuple[str, int], float] = {}
    for _, layer, expert, value in mine:
        sums[layer, expert] = sums.get((layer, expert), 0.0) + value
    return {layer: [sums.get((layer, expert), 0.0) / steps for expert in experts] for layer in layers}


def _imbalance(row: list[float]) -> float:
    mean = sum(row) / len(row) if row else 0.0
    return max(row) / mean if mean else 0.0


def _heat(held: dict[str, list[float]], experts: list[int]) -> None:
    top = max((v for row in held.values() for v in row), default=0.0) or 1.0
    rows = []
    for layer, row in held.items():
        whole = sum(row) or 1.0
        cells = [
            Cell(
                max(v / top, 0.01),
                count(round(v)),
                f"layer {layer} · expert {e} · {count(round(v))} tokens · {percent(v / whole)}",
            )
            for e, v in zip(experts, row, strict=True)
        ]
        rows.append((layer or "layer not named", cells))
    heads = [f"expert {e}" if i == 0 else str(e) for i, e in enumerate(experts)]
    figure = matrix_figure(rows, heads, "compute_ns", show.FULL, "Tokens by layer and expert")
    sub = "Tokens that each expert takes per step, all ranks together; the stronger the colour, the more."
    show.section("Tokens per expert and layer", escape(sub), show.figure(figure))


def _note(view: View) -> str:
    return "" if view.opened.experts else "no experts"


PAGE = Page("moe", "MoE", "Analyse", render, _note)

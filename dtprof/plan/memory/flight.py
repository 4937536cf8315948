"""How many micro-batches a rank of a pipeline has begun and not finished, at most."""

from __future__ import annotations

from dtprof.plan.spec import Layout


def in_flight(layout: Layout, rank: int) -> float:
    """Micro-batches whose activations a rank holds at once, in units of all its layers; one of v virtual stages counts 1/v.

    GPipe (Huang et al. 2019): all m. 1F1B (Narayanan et al. 2019): min(p - rank, m). Interleaved (Narayanan et al. 2021,
    section 2.2): (v - 1) p + 2 (p - 1 - rank) + 1 stages of the v m; on the first rank Korthikanti et al. 2022's 1 + (p - 1) /
    (p v) times the model. Zero bubble (Qi et al. 2024, ZB-H1): p on every rank, as what the weights' part needs waits.
    """
    ranks, per_rank, count = layout.pp, layout.vpp, layout.microbatches
    if ranks == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(count)
    if layout.schedule == "zero-bubble":
        held = (per_rank - 1) * ranks + (ranks - 1 - rank) + 1 + rank
    elif per_rank > 1:
        held = (per_rank - 1) * ranks + 2 * (ranks - 1 - rank) + 1
    else:
        held = ranks - rank
    return min(held, count * per_rank) / per_rank

"""Layouts in words, as Megatron's users name them."""

from __future__ import annotations

from dtprof.plan.spec import Layout


def brief(layout: Layout) -> str:
    """``tp 8 pp 4 dp 32 mb 2``: sizes that are not 1, then what differs from the plain case."""
    axes = [f"{name} {value}" for name, value in (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp)) if value > 1]
    if layout.vpp > 1:
        axes.append(f"vpp {layout.vpp}")
    if layout.ep > 1:
        axes.append(f"ep {layout.ep}")
    axes += [f"dp {layout.dp}", f"mb {layout.micro_batch}", f"ZeRO-{layout.zero}" if layout.dp * layout.cp > 1 else ""]
    if layout.shard:
        axes.append(f"over {layout.shard}")
    if layout.schedule not in ("1f1b", "interleaved"):
        axes.append(layout.schedule)
    if layout.recompute != "none":
        axes.append(f"recompute {layout.recompute}")
    if layout.offload:
        axes.append(f"{' and '.join(layout.offload)} on the host")
    return " ".join(filter(None, axes))

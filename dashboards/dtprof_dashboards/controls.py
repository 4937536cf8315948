"""Edits as boxes: one for each key that a model of the run follows, with values to choose from or to type."""

from __future__ import annotations

from html import escape

import streamlit as st

from dtprof.edits import KEYS
from dtprof.model.offered import Offer
from dtprof.run import Run
from dtprof_dashboards import selection, show

UNCHANGED = "as it is"
_FLAG = ("true", "false")
_SPEEDS = ("0.5", "2", "4")
# key -> values that are offered; those of ``_TYPED`` may be typed as well
VALUES: dict[str, tuple[str, ...]] = {
    "ddp.bucket_cap_mb": ("0.5", "1", "2", "5", "10", "25", "50", "100"),
    "ddp.bucket_cap_mb_list": ("1,25", "1,5,25"),
    "ddp.gradient_as_bucket_view": _FLAG,
    "ddp.first_bucket_mb": ("0.5", "1", "2", "5"),
    "ddp.accumulation": ("2", "4", "8"),
    "comm.dtype": ("bf16", "fp16"),
    "comm.powersgd_rank": ("1", "2", "4", "8"),
    "comm.algorithm": ("ring", "tree"),
    "net.bandwidth_scale": ("0.25", "0.5", "2", "4", "10"),
    "net.latency_scale": ("0.1", "0.5", "2", "4"),
    "fsdp.reshard_after_forward": _FLAG,
    "fsdp.prefetch": ("0", "1", "2", "3"),
    "fsdp.wrap": ("1", "2", "3", "4"),
    "pipeline.schedule": ("1f1b", "gpipe", "interleaved", "zero-bubble"),
    "pipeline.microbatches": ("2", "4", "8", "16", "32"),
    "pipeline.virtual_stages": ("2", "4"),
    "pipeline.balance": ("even",),
    "moe.balance": ("even",),
    "moe.capacity_factor": ("1", "1.25", "1.5", "2"),
    "loader.num_workers": ("0", "1", "2", "4", "8"),
    "loader.prefetch_factor": ("1", "2", "4"),
    "loader.pin_memory": _FLAG,
    "ideal.communication": ("true",),
    "ideal.loader": ("true",),
    "compute.matmul_scale": _SPEEDS,
    "compute.attention_scale": _SPEEDS,
    "compute.elementwise_scale": _SPEEDS,
}
_TYPED = frozenset(
    key
    for key in VALUES
    if key.endswith(("_mb", "_list", "_scale", "_rank", "_factor", "accumulation", "microbatches", "wrap"))
)
_FAMILIES = {
    "ddp": "Gradient buckets and steps",
    "comm": "What travels, and how",
    "net": "The network",
    "fsdp": "Sharded units",
    "pipeline": "The pipeline",
    "moe": "Experts",
    "loader": "Loading data",
    "ideal": "If it were perfect",
    "compute": "Faster kernels",
}


def values_of(key: str, run: Run) -> tuple[str, ...]:
    """The values that are offered for a key; none where the run has nothing to choose from."""
    if key == "ideal.rank":
        return tuple(map(str, run.ranks)) if len(run.ranks) > 1 else ()
    return VALUES.get(key, ())


def boxes(offered: list[Offer], run: Run) -> tuple[str, ...]:
    """A box for each key that is offered, and what is chosen, as ``KEY=VALUE``."""
    chosen, family, widgets = [], "", []
    for key in dict.fromkeys(key for offer in offered for key in offer.keys):
        values = values_of(key, run)
        if not values:
            continue
        if family != (family := key.partition(".")[0]):
            show.markup(f'<p class="family">{escape(_FAMILIES.get(family, family))}</p>')
        widgets.append(selection.widget_key(key))
        told = f"{KEYS[key].what}: {KEYS[key].expects}"
        options = [UNCHANGED, *values]
        value = st.selectbox(key, options, key=widgets[-1], help=told, accept_new_options=key in _TYPED) or UNCHANGED
        if value != UNCHANGED:
            chosen.append(f"{key}={value}")
    st.button("Reset", on_click=_reset, args=(widgets,))
    return tuple(chosen)


def _reset(widgets: list[str]) -> None:
    for widget in widgets:
        st.session_state[widget] = UNCHANGED

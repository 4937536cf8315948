"""The pages, in the order of the sidebar: one module each, and one line here."""

from __future__ import annotations

from dtprof_dashboards.pages import (
    advice,
    communication,
    compare,
    hta,
    kernels,
    memory,
    moe,
    overlap,
    overview,
    pipeline,
    plan,
    ranks,
    timeline,
    whatif,
)
from dtprof_dashboards.view import Page

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    advice.PAGE,
    ranks.PAGE,
    communication.PAGE,
    overlap.PAGE,
    pipeline.PAGE,
    moe.PAGE,
    memory.PAGE,
    kernels.PAGE,
    timeline.PAGE,
    whatif.PAGE,
    plan.PAGE,
    compare.PAGE,
    hta.PAGE,
)

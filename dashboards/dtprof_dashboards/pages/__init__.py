"""The pages, in the order of the sidebar: one module each, and one line here."""

from __future__ import annotations

from dtprof_dashboards.pages import overview
from dtprof_dashboards.view import Page

PAGES: tuple[Page, ...] = (overview.PAGE,)

"""What the server serves: the program of the pages, and what the timeline asks for beside it."""

from __future__ import annotations

from pathlib import Path

from streamlit.starlette import App

from dtprof_dashboards.timeline.routes import routes

app = App(Path(__file__).with_name("app.py"), routes=routes())

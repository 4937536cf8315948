"""What the server serves: the program of the pages, what the timeline asks for beside it, and which process serves."""

from __future__ import annotations

import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from streamlit.starlette import App

from dtprof_dashboards.command import ALIVE
from dtprof_dashboards.timeline.routes import routes


def _alive(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


app = App(Path(__file__).with_name("app.py"), routes=[Route(ALIVE, _alive), *routes()])

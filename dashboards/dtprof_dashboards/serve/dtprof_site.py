"""What the server serves: the program of the pages, what the timeline asks for beside it, and which process serves.

The run that is shown first is read as soon as the server starts, and the pages are imported, while a browser still opens.
"""

from __future__ import annotations

import importlib
import os
import threading
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from streamlit.starlette import App

from dtprof.errors import DtprofError
from dtprof_dashboards.command import ALIVE, ROOT
from dtprof_dashboards.listing import HERE, entries, watermark
from dtprof_dashboards.opened import read
from dtprof_dashboards.timeline.routes import routes


def _alive(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


def _read_ahead() -> None:
    """What cannot be read is for the page to say."""
    runs = entries(Path(os.environ.get(ROOT, HERE)))
    try:
        if runs:
            read(runs[0].path, watermark(runs[0].path))
    except DtprofError:
        pass
    importlib.import_module("dtprof_dashboards.pages")


threading.Thread(target=_read_ahead, name="read ahead", daemon=True).start()
app = App(Path(__file__).with_name("app.py"), routes=[Route(ALIVE, _alive), *routes()])

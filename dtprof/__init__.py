"""dtprof: profiling and diagnostics for distributed PyTorch training.

    with dtprof.profile("runs/a") as prof:
        for batch in batches:
            with dtprof.annotate("forward"):
                ...
            prof.step()

    run = dtprof.open_run("runs/a")

Importing this package loads neither torch nor pandas; names are resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["annotate", "loader", "metric", "open_run", "profile", "step"]

_HOME = {
    "profile": "session", "step": "session", "annotate": "session", "metric": "session", "loader": "session",
    "open_run": "ingest",
}  # fmt: skip

if TYPE_CHECKING:
    from dtprof.ingest import open_run as open_run
    from dtprof.session import annotate as annotate
    from dtprof.session import loader as loader
    from dtprof.session import metric as metric
    from dtprof.session import profile as profile
    from dtprof.session import step as step


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f"dtprof.{_HOME[name]}"), name)
        return value
    raise AttributeError(f"module 'dtprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Our NVTX domain, through whatever version of ``nvtx`` is installed, where a tool such as Nsight Systems is attached.

Up to nvtx 0.2.11 a domain object has no ``push_range``: there the module's functions do the same.
"""

from __future__ import annotations

import os
from typing import Any

NAME = "dtprof"
# set by nsys for the processes that it profiles; the last by people, for other tools
_VARIABLES = ("NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "DTPROF_NVTX")


def attached() -> bool:
    """Does a tool listen to this process?"""
    return any(os.environ.get(key) for key in _VARIABLES)


def domain() -> Any:
    """An object with ``get_event_attributes``, ``push_range`` and ``pop_range``; None where nobody listens."""
    if not attached():
        return None
    try:
        import nvtx
    except ImportError:
        return None
    if not nvtx.enabled():
        return None
    found = nvtx.get_domain(NAME)
    return found if hasattr(found, "push_range") else _ByName(nvtx)


class _ByName:
    """The domain by name, for versions whose own has no methods for ranges."""

    def __init__(self, nvtx: Any) -> None:
        self._nvtx = nvtx

    def get_event_attributes(self, **attributes: Any) -> dict[str, Any]:
        return attributes

    def push_range(self, attributes: dict[str, Any]) -> None:
        self._nvtx.push_range(domain=NAME, **attributes)

    def pop_range(self) -> None:
        self._nvtx.pop_range(domain=NAME)

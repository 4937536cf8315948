"""What every test may rely on: real traces, a private cache, and no network beyond loopback.

Markers are chosen by the Makefile (``make test`` leaves out slow, browser and gpu), not here.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
CACHE = pytest.StashKey[tempfile.TemporaryDirectory]()

# no deadline: tests never assert on times; in CI the same examples every time
settings.register_profile("dtprof", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dtprof")


def pytest_configure(config):
    """Point the cache at a folder of this session, also for the processes that tests start."""
    folder = tempfile.TemporaryDirectory(prefix="dtprof-tests-")
    config.stash[CACHE] = folder
    os.environ["DTPROF_CACHE"] = folder.name
    sys.addaudithook(stay_on_loopback)


def pytest_unconfigure(config):
    """Remove the session's cache."""
    config.stash[CACHE].cleanup()


def pytest_collection_modifyitems(items):
    """Tests that read real traces carry the marker of that name."""
    for item in items:
        if "truth" in getattr(item, "fixturenames", ()):
            item.add_marker("truth")


def stay_on_loopback(event, args):
    """Audit hook: a connection of this process to anything but loopback is an error."""
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise PermissionError(f"tests stay on loopback, not {host}")


@pytest.fixture(scope="session")
def truth() -> Path:
    """The folder of real traces and independently computed numbers."""
    folder = Path(os.environ.get("DTPROF_TRUTH", ROOT.parent / "shared")) / "traces"
    if folder.is_dir():
        return folder.parent
    message = f"no real traces in {folder}; name their folder with DTPROF_TRUTH"
    if os.environ.get("DTPROF_TRUTH_REQUIRED") == "1":
        pytest.fail(message)
    pytest.skip(message)

"""``dtprof dashboard``: serve the web page on loopback, until interrupted."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path

from dtprof.errors import DtprofError, InputError, MissingExtra
from dtprof.report.palette import SURFACE

ROOT = "DTPROF_DASHBOARD"
# its server tells its process there
ALIVE = "/dtprof/alive"
FIRST_PORT, PORTS = 8501, 50
_PATIENCE_S = 60.0
# option of the theme -> its colours in light and dark; controls have no hue
_THEME = {
    "primaryColor": ("#2B3440", "#D5DAE1"),
    "backgroundColor": SURFACE["page"],
    "secondaryBackgroundColor": ("#F5F6F8", "#181D25"),
    "textColor": SURFACE["ink"],
    "borderColor": SURFACE["line"],
}


class DashboardCommand:
    """The verb ``dashboard``."""

    name = "dashboard"
    summary = "The web page of a run, or of a folder of runs, on loopback."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument(
            "path", metavar="PATH", nargs="?", default=".", help="a run, a trace file or folder, or a folder of runs (here)"
        )
        parser.add_argument("--port", type=int, metavar="P", help=f"the port (the first free one from {FIRST_PORT})")
        parser.add_argument(
            "--address", metavar="IP", default="127.0.0.1", help="serve there instead; whoever reaches it reads the runs"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until interrupted; the address is printed when the page answers."""
        root = Path(args.path)
        if not args.path or not root.exists():
            raise InputError(f"{root}: no such file or folder", "give a run, traces, or a folder of runs")
        _check_address(args.address)
        if find_spec("streamlit") is None:
            raise MissingExtra("the dashboard needs streamlit, which is not installed", "pip install 'dtprof[dashboard]'")
        signal.signal(signal.SIGTERM, _interrupt)
        first = FIRST_PORT
        while True:
            port = _port(args.address, args.port, first)
            url = f"http://{f'[{args.address}]' if ':' in args.address else args.address}:{port}"
            process = subprocess.Popen(command(args.address, port), env=environment(root), stdout=subprocess.DEVNULL)
            try:
                if _answers(process, url):
                    _say(url, root, port, process.pid, args.json)
                    return process.wait()
            finally:
                _stop(process)
            if process.returncode != 1 or _taken(args.address, port) is None:
                reason = f"streamlit ended with {process.returncode}"
                raise DtprofError(f"the dashboard did not start ({reason})", "see what it printed above")
            # it was free when it was looked at, and another program was faster
            first = port + 1


def command(address: str, port: int) -> list[str]:
    """The command that starts Streamlit: headless, without telemetry, without a look at anything outside."""
    options = {
        "server.address": address, "server.port": port, "server.headless": "true", "server.fileWatcherType": "none",
        "server.showEmailPrompt": "false", "browser.gatherUsageStats": "false", "browser.serverAddress": address,
        "browser.serverPort": port, "client.toolbarMode": "minimal", "client.showErrorDetails": "none",
        "client.showSidebarNavigation": "false", "client.showErrorLinks": "false", "runner.magicEnabled": "false",
        "global.developmentMode": "false", "logger.level": "warning", "theme.baseRadius": "6px",
    }  # fmt: skip
    for dark, name in enumerate(("light", "dark")):
        options |= {f"theme.{name}.{key}": colours[dark] for key, colours in _THEME.items()}
    app = Path(__file__).parent / "serve" / "dtprof_site.py"
    # a module of the folder in which the verb is typed takes the place of none
    return [sys.executable, "-P", "-m", "streamlit", "run", str(app), *(f"--{key}={value}" for key, value in options.items())]


def environment(root: Path) -> dict[str, str]:
    """The environment of the server: the folder it shows."""
    return {**os.environ, ROOT: str(root.resolve())}


def _interrupt(*_: object) -> None:
    """A polite end is an interruption: the server must not outlive the command."""
    raise KeyboardInterrupt


def _check_address(address: str) -> None:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise InputError(f"--address {address} is no IP address", "give one as 127.0.0.1, or leave it out") from None


def _port(address: str, wanted: int | None, first: int) -> int:
    """The port wanted, or the first free one from ``first`` on."""
    if wanted is not None and not 1 <= wanted <= 65535:
        raise InputError(f"--port {wanted}: not from 1 to 65535", "leave it out for the first free one")
    problem: OSError | None = None
    for port in range(first, FIRST_PORT + PORTS) if wanted is None else [wanted]:
        problem = _taken(address, port)
        if problem is None:
            return port
    reason = problem.strerror if problem else "in use"
    where = f"{address}, port {wanted}" if wanted else f"{address}, ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1}"
    raise InputError(f"{where}: cannot be served ({reason})", "give another --port or --address")


def _taken(address: str, port: int) -> OSError | None:
    """Why a port cannot be served now; None where it can."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
        return None
    except OSError as error:
        return error


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until this server answers, and no other at its address; False where it ended first."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + _PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with opener.open(f"{url}{ALIVE}", timeout=5) as answer:
                if answer.read(20) == str(process.pid).encode():
                    return True
        except (OSError, HTTPException):
            pass
        time.sleep(0.1)
    return False


def _say(url: str, root: Path, port: int, pid: int, as_json: bool) -> None:
    """The address, for people or as a document."""
    if as_json:
        document = {"schema": 1, "url": url, "path": str(root.resolve()), "port": port, "pid": pid}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(f"dtprof dashboard of {root}: {url}\nCtrl-C ends it.\n")
    sys.stdout.flush()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

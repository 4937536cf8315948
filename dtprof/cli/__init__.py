"""The command line: the only place that prints errors and ends the process.

Exit codes: 0 done; 1 a check failed (``report --fail-on``); 2 inconclusive; 3 bad input or usage; 4 a needed program or
extra is missing; 70 a fault in dtprof itself; 130 interrupted. A verb is imported only when it is used.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

from dtprof.cli.output import until_reader_leaves
from dtprof.cli.parser import UsageError, help_text, parse
from dtprof.errors import DtprofError

FAULT, INTERRUPTED = 70, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words[: words.index("--")] if "--" in words else "--debug" in words
    try:
        code = 0
        with until_reader_leaves():
            code = _run(words)
        return code
    except UsageError as error:
        return _complain(str(error), 3)
    except DtprofError as error:
        return _complain(str(error), error.exit_code, debug)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as fault:  # noqa: BLE001 - the last line of defence: one line, not a traceback
        what = f"a fault in dtprof itself ({type(fault).__name__}: {fault})"
        return _complain(f"{what}; please report it with what the same command prints with --debug added", FAULT, debug)


def _run(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if not words:
        raise UsageError("no verb given; try dtprof report PATH, or dtprof --help")
    if words[0] in ("-h", "--help"):
        sys.stdout.write(help_text())
        return 0
    if words[0] in ("-V", "--version"):
        from dtprof import __version__

        sys.stdout.write(f"dtprof {__version__}\n")
        return 0
    command, args = parse(words)
    return 0 if command is None else command.run(args)


def _complain(message: str, code: int, debug: bool = False) -> int:
    """One line on stderr, whatever the message holds; the traceback before it where asked for."""
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"dtprof: {' '.join(message.split())}\n")
    return code

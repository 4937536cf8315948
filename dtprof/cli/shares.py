"""Options that are shares: ``2%`` or ``0.02``; and the options in which results are written for CI."""

from __future__ import annotations

import argparse
import math
import os
import sys
from typing import TYPE_CHECKING

from dtprof.errors import InputError

if TYPE_CHECKING:
    from dtprof.check.result import Result


def share(text: str) -> float:
    """A share of 0 or more; argparse reports what is none."""
    number = text.strip()
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write it as 2% or 0.02") from None
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no share of 0 or more; write it as 2% or 0.02")
    return value


def level(text: str) -> float:
    """A share strictly between 0 and one half."""
    value = share(text)
    if not 0 < value < 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no level; write it as 1% or 0.01, below 50%")
    return value


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """``--junit``, ``--markdown`` and ``--github``."""
    parser.add_argument("--junit", metavar="FILE", help="also write the outcome as JUnit XML")
    parser.add_argument("--markdown", metavar="FILE", help="also write it as a Markdown summary")
    parser.add_argument(
        "--github", action="store_true", help="print GitHub annotations; append the summary to $GITHUB_STEP_SUMMARY"
    )


def write_outputs(result: Result, args: argparse.Namespace) -> None:
    """What the three options ask for; annotations go to stderr, which GitHub reads as well."""
    from dtprof.check import outputs

    if args.junit:
        outputs.write(args.junit, outputs.junit(result), "--junit")
    if args.markdown:
        outputs.write(args.markdown, outputs.markdown(result), "--markdown")
    if args.github:
        for line in outputs.github(result):
            sys.stderr.write(f"{line}\n")
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            try:
                with open(summary, "a", encoding="utf-8") as file:
                    file.write(outputs.markdown(result))
            except OSError as error:
                raise InputError(f"GITHUB_STEP_SUMMARY={summary}: cannot be written ({error.strerror})", "unset it") from error

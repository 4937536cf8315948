"""``dtprof merge PART… -o RUN``: one run from the folders that its nodes wrote each to its own disk."""

from __future__ import annotations

import argparse
import json as json_module
import sys
from pathlib import Path

from dtprof.launch.merge import merge


class MergeCommand:
    """The verb ``merge``."""

    name = "merge"
    summary = "Join what nodes without a shared disk wrote into one run."

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("parts", nargs="+", metavar="PART", help="the run folder that a node wrote, or a part folder of it")
        parser.add_argument("-o", "--out", required=True, metavar="RUN", help="the run folder to make")

    def run(self, args: argparse.Namespace) -> int:
        """Join, and say what is missing."""
        merged = merge([Path(part) for part in args.parts], Path(args.out))
        if args.json:
            sys.stdout.write(json_module.dumps(merged.document(), indent=1) + "\n")
            return 0
        ranks = f"{len(merged.ranks)} {'rank' if len(merged.ranks) == 1 else 'ranks'}"
        hosts = f"{len(merged.hosts)} {'host' if len(merged.hosts) == 1 else 'hosts'}"
        print(f"{merged.path}: {ranks} of {hosts}; see dtprof report {merged.path}")
        for note in merged.notes:
            print(f"  {note}")
        return 0

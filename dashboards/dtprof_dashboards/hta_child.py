"""Asks Holistic Trace Analysis for its breakdowns, in a process of its own, and prints them as JSON.

Arguments: a scratch folder, then RANK=FILE for each trace.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings


def main(words: list[str]) -> None:
    """Print {"breakdown": [...], "overlap": [...]}: one row per rank, times in us as HTA gives them."""
    folder, *pairs = words
    files = {int(rank): path for rank, _, path in (pair.partition("=") for pair in pairs)}
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(sys.stderr):
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_files=files, trace_dir=folder)
        found = {
            "breakdown": analysis.get_temporal_breakdown(visualize=False).to_dict("records"),
            "overlap": analysis.get_comm_comp_overlap(visualize=False).to_dict("records"),
        }
    sys.stdout.write(json.dumps(found, default=float))


if __name__ == "__main__":
    main(sys.argv[1:])

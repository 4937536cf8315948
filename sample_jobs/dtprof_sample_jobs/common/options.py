"""Options that every job has."""

from __future__ import annotations

import argparse

from dtprof_sample_jobs.common.faults import fault


def common_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the common options; the job adds its own. The first paragraph of ``doc`` describes it."""
    made = argparse.ArgumentParser(prog=f"dtprof job {name}", description=(doc or "").split("\n\n")[0], allow_abbrev=False)
    made.add_argument("--steps", type=int, default=40, help="steps to train (40)")
    made.add_argument("--layers", type=int, default=6, help="transformer blocks (6)")
    made.add_argument("--dim", type=int, default=192, help="width of the model (192)")
    made.add_argument("--heads", type=int, default=4, help="attention heads (4)")
    made.add_argument("--seq", type=int, default=64, help="sequence length (64)")
    made.add_argument("--batch", type=int, default=4, help="sequences per rank and step (4)")
    made.add_argument("--vocabulary", type=int, default=1024, help="tokens in the vocabulary (1024)")
    made.add_argument("--seed", type=int, default=0, help="seed of model and data (0)")
    made.add_argument("--inject", type=fault, action="append", default=[], metavar="FAULT", help="plant slow_rank=RANK:TIME")
    made.add_argument("--out", metavar="RUN", help=f"folder of the run (runs/{name}; with dtprof job runs/{name}-<time>)")
    made.add_argument("--capture", default="5:15", metavar="A:B", help="trace steps A to B-1 (5:15), or none")
    made.add_argument("--no-dtprof", action="store_true", help="train without any measurement")
    made.add_argument("--losses", metavar="FILE", help="write the losses, bit for bit, to FILE.rank0, FILE.rank1, …")
    return made

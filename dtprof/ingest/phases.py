"""Phases of a training step, by the names that people and frameworks give their ranges."""

from __future__ import annotations

import re
from functools import cache

from dtprof.ingest.frameworks import phase_and_tags
from dtprof.ranges import parse_range
from dtprof.schema import PHASES

_PHASE_NAMES = (
    ("data", re.compile(r"^data$|^enumerate\(DataLoader\)|load_batch|wait_for_batch|copy_batch|next_batch|^dataloader", re.I)),
    ("forward", re.compile(r"^forward$|^#+ ?forward ?#+$|^DistributedDataParallel\.forward$|^forward[ "
    "_-]?(?:pass|step)$", re.I)),
    ("backward", re.compile(r"^backward$|^#+ ?backward ?#+$|^backward[ _-]?(?:pass|step)$", re.I)),
    ("optimizer", re.compile(r"^optimizer$|^#+ ?optimizer ?#+$|^Optimizer\.step#|^optimizer[ _.-]?step$", re.I)),
    ("checkpoint", re.compile(r"^checkpoint$|^#+ ?checkpoint ?#+$|save_checkpoint", re.I)),
    ("evaluation", re.compile(r"^eval(?:uation)?$|^validation$|^#+ ?eval(?:uation)? ?#+$", re.I)),
)  # fmt: skip


@cache
def phase_of(name: str) -> str | None:
    """Phase that a range name means: its ``phase`` tag, else its base name or a framework's; None where it means none."""
    base, tags = parse_range(name)
    if tags.get("phase") in PHASES:
        return str(tags["phase"])
    for phase, pattern in _PHASE_NAMES:
        if pattern.search(base):
            return phase
    return phase_and_tags(base)[0]

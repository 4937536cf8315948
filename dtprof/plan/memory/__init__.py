"""How much memory a layout takes on each rank, part by part.

Korthikanti et al. 2022 for activations, Rajbhandari et al. 2020 (ZeRO) for states. docs/planner.md has every formula.
"""

from __future__ import annotations

from dtprof.plan.memory.breakdown import Memory
from dtprof.plan.memory.peak import fits, host_bytes, peak_bytes, per_stage

__all__ = ["Memory", "fits", "host_bytes", "peak_bytes", "per_stage"]

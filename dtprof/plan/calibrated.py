"""Which measurements an estimate rests on, and how far it may be off: said with every prediction."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dtprof.plan.constants import Constants
from dtprof.plan.spec import Cluster, Model, Software


@dataclass(frozen=True)
class Calibration:
    """Constants and where they come from; the truth is expected between ``low`` and ``high`` times an estimate (95%)."""

    name: str
    constants: Constants
    low: float
    high: float

    def interval(self, seconds: float) -> tuple[float, float]:
        """Seconds between which the truth is expected."""
        return self.low * seconds, self.high * seconds


@dataclass(frozen=True)
class _Table:
    """Rows of one GPU and one software (patterns of their names); ``spread``: 95% of their errors are within this factor."""

    gpu: str
    software: str
    name: str
    spread: float


# spreads are quantiles of the errors on the rows that were fitted (benchmarks/layout.py --fit prints them), 5% at the least:
# published runs of one configuration lie that far apart
_TABLES = (
    _Table(r"A100", r"megatron-202[01]", "724 rows of vTrain and Megatron-LM 2021 on A100", 1.28),
    _Table(r"A100", "fsdp-2023", "78 rows of LLM-Foundry on A100 40GB", 1.13),
    _Table(r"A100", "internevo-2024", "24 rows of InternEvo on A100", 1.05),
    _Table(r"H100 SXM", "fsdp-2023", "2 rows of LLM-Foundry on H100, the rest of the constants on A100", 1.13),
)
# from the catalogue alone: between Ampere and Hopper shares of the ceilings moved by up to a factor of 0.63, that of kernels
# with Ampere's instructions, so a newer or unknown combination may be slower by its inverse; it has been faster by a quarter
_CATALOGUE = (0.75, 1.6)
# no table with experts was fitted: uneven experts, permutations and waiting for counts come on top
_EXPERTS = (0.75, 3.0)


def calibration(model: Model, cluster: Cluster, software: Software, *, catalogue: bool = False) -> Calibration:
    """What a prediction rests on without a run of one's own; ``catalogue``: no measured share of another GPU than Ampere's."""
    constants = Constants()
    if catalogue and not re.search("A100", cluster.gpu.name):
        constants = replace(constants, hopper_products=1.0)
    if model.moe is not None:
        return Calibration("catalogue: no rows with experts were fitted", constants, *_EXPERTS)
    for table in _TABLES:
        if not catalogue and re.fullmatch(table.software, software.name) and re.match(table.gpu, cluster.gpu.name):
            return Calibration(table.name, constants, 1 / table.spread, table.spread)
    what = f"catalogue: no rows of {software.name} on {cluster.gpu.name} were fitted"
    return Calibration(what, constants, *_CATALOGUE)

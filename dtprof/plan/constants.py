"""The constants of the time model, all of them in this file: what was fitted on what, and what is declared.

Thirteen are fitted, on published measurements (docs/planner.md), by ``dtprof.plan.fit``, which reproduces these figures: the
twelve of ``Constants``, and ``JOINING``. Nothing else in the planner is fitted. Declared ones name their source where they
stand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from dtprof.plan.spec import Products


@dataclass(frozen=True)
class Constants:
    """What the time model multiplies ceilings with.

    Shares of the measured matmul ceiling: ``products_2021``, ``products_2023``, ``products_internevo`` of matrix products by
    software, ``flash`` of FlashAttention by the whole square of scores. Traffic: ``scores``, bytes for each score of attention
    that writes them, forward and backward pass; ``logits``, ``logits_parallel``, bytes for each logit of torch's and of
    Megatron's loss. Time: ``launch_ms``, the least that a layer's passes take when kernels are launched one by one, ms;
    ``arrival_us``, what each sum of tensor parallelism takes beyond the operation alone, until all ranks are there, us;
    ``recompute``, a recomputed forward pass over a first one. ``network``: share of the line that a network reaches.
    ``hopper_products``: the share of products on Hopper over that on Ampere.
    """

    products_2021: float = 0.8336
    products_2023: float = 0.8223
    products_internevo: float = 0.7715
    flash: float = 0.7047
    scores: float = 43.94
    logits: float = 37.82
    logits_parallel: float = 96.43
    launch_ms: float = 2.96
    arrival_us: float = 47.13
    recompute: float = 0.7862
    network: float = 0.9699
    hopper_products: float = 0.8198

    def products(self, software: Products) -> float:
        """The share of products with this software on Ampere: ``2025`` has that of 2023."""
        return {"2021": self.products_2021, "internevo": self.products_internevo}.get(software, self.products_2023)


# the power of the mean in which the launches of a layer and its work join; chosen from 2, 2.5, 3, 4 and 5 by error and regret
# on the rows that were fitted
JOINING: Final = 2.5
NAMES: Final = tuple(field.name for field in fields(Constants))

# how much communication and the compute beside it slow each other down: Miao et al. 2022 (Galvatron), 1.3 for both
CONTENTION: Final = 0.3

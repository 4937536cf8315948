"""The constants of the time model, all of them in this file: what was fitted on what, and what is declared.

Fourteen are fitted, on published measurements (``FITTED_ON``), by ``dtprof.plan.fit``, which reproduces these figures. Nothing
else in the planner is fitted. Declared ones name their source where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True)
class Constants:
    """What the time model multiplies ceilings with.

    Shares of the measured matmul ceiling: ``products_2021``, ``products_2023``, ``products_internevo`` of matrix products by
    software, ``flash`` of FlashAttention by the whole square of scores. Traffic: ``operands``, that of a product's three
    matrices, once each, beside its FLOPs; ``scores``, bytes for each score of attention that writes them, forward and backward
    pass; ``logits``, ``logits_parallel``, bytes for each logit of torch's and of Megatron's loss. Time: ``launch_ms``, the
    least that a layer's passes take when kernels are launched one by one, ms; ``arrival_us``, what each sum of tensor
    parallelism takes beyond the operation alone, until all ranks are there, us; ``recompute``, a recomputed forward pass over
    a first one. ``network``: share of the line that a network reaches. ``hopper_products``, ``hopper_flash``: the shares on
    Hopper over those on Ampere.
    """

    products_2021: float = 0.8396
    products_2023: float = 0.8333
    products_internevo: float = 0.7783
    flash: float = 0.7069
    operands: float = 1.253
    scores: float = 43.84
    logits: float = 32.73
    logits_parallel: float = 115.3
    launch_ms: float = 3.058
    arrival_us: float = 31.48
    recompute: float = 0.772
    network: float = 0.9692
    hopper_products: float = 0.8199
    hopper_flash: float = 0.6326


NAMES: Final = tuple(field.name for field in fields(Constants))

# how much communication and the compute beside it slow each other down: Miao et al. 2022 (Galvatron), 1.3 for both
CONTENTION: Final = 0.3

"""Fitting: constants that made a table are found again, and outliers do not pull."""

from dataclasses import replace

import numpy as np
import pytest

from dtprof.plan.constants import Constants
from dtprof.plan.fit import Measured, fit, seconds
from dtprof.plan.rows import parse

TRUE = replace(Constants(), products_2023=0.6, flash=0.5, logits=80.0)


def rows():
    base = {
        "source": "llm-foundry", "gpus": "8", "gpu_type": "a100_80gb", "tp": "1", "pp": "1", "dp": "8", "recompute": "none",
        "zero_stage_sharding": "FULL_SHARD", "dtype": "bf16", "attn": "flash",
    }  # fmt: skip
    return [
        parse({**base, "model": model, "seq": str(seq), "micro_batch": str(micro), "global_batch": str(16 * micro)})
        for model in ("MPT-125m", "MPT-1b", "MPT-7b")
        for seq, micro in ((512, 32), (2048, 8), (16384, 1))
    ]


def table(factors=None):
    truth = seconds(rows(), TRUE) * (1.0 if factors is None else np.array(factors))
    return {"made": [Measured(row, float(one)) for row, one in zip(rows(), truth, strict=True)]}


def test_the_constants_that_made_a_table_are_found_again():
    found = fit(table(), ("products_2023", "flash", "logits"), Constants())
    assert found.products_2023 == pytest.approx(0.6, rel=0.01)
    assert found.flash == pytest.approx(0.5, rel=0.01)
    assert found.logits == pytest.approx(80.0, rel=0.02)
    assert found.scores == Constants().scores


def test_one_outlier_moves_little():
    found = fit(table([1.0] * 8 + [3.0]), ("products_2023", "flash"), replace(Constants(), logits=80.0))
    assert found.products_2023 == pytest.approx(0.6, rel=0.05)


def test_tables_weigh_the_same_whatever_their_length():
    made = table()["made"]
    slower = [Measured(one.row, 1.05 * one.seconds) for one in made]
    start = replace(TRUE, products_2023=0.55)
    equal = fit({"a": made, "b": slower}, ("products_2023",), start).products_2023
    many = fit({"a": made * 9, "b": slower}, ("products_2023",), start).products_2023
    assert many == pytest.approx(equal, rel=1e-3)

"""Which constraint a layout breaks, and the nearest value that keeps it."""

from dataclasses import replace

import pytest

from dtprof.plan.machines import gpu_called
from dtprof.plan.presets import preset
from dtprof.plan.spec import Cluster, Layout, check, divisors, nearest

GPU = gpu_called("H100 SXM")
CLUSTER = Cluster(GPU, 64, 8, 80 * 10**9, 450.0, 400.0)
LLAMA = preset("Llama 3 70B")
FINE = Layout(dp=4, tp=4, pp=4, micro_batch=1, global_batch=64, seq=8192)


def test_a_layout_without_problems():
    assert check(LLAMA, CLUSTER, FINE) == []


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dp": 3}, "dp"),
        ({"dp": 8}, "dp"),
        ({"global_batch": 62}, "global_batch"),
        ({"micro_batch": 3}, "micro_batch"),
        ({"dp": 4, "cp": 1, "tp": 0}, "tp"),
        ({"zero": 5}, "zero"),
        ({"shard": 3, "zero": 3}, "shard"),
        ({"ep": 2}, "ep"),
        ({"vpp": 3, "global_batch": 40}, "global_batch"),
        ({"pp": 1, "dp": 16, "vpp": 2}, "vpp"),
        ({"precision": "bf15"}, "precision"),
    ],
)
def test_names_the_constraint_and_a_value_that_keeps_it(changes, key):
    layout = replace(FINE, **changes)
    problems = check(LLAMA, CLUSTER, layout)
    assert key in [one.key for one in problems]
    wrong = next(one for one in problems if one.key == key)
    assert str(getattr(layout, key)) in str(wrong)
    if wrong.nearest is not None:
        mended = replace(layout, **{key: wrong.nearest})
        assert key not in [one.key for one in check(LLAMA, CLUSTER, mended)]


def test_tensor_parallelism_goes_with_heads_and_inner_size():
    odd = replace(FINE, tp=3, dp=1, pp=1)
    cluster = replace(CLUSTER, gpus=3)
    (wrong,) = [one for one in check(LLAMA, cluster, odd) if one.key == "tp"]
    assert wrong.nearest == 4
    # keys that are fewer than ranks lie on several of them
    assert check(LLAMA, CLUSTER, replace(FINE, tp=16, dp=1)) == []


def test_context_parallelism_gives_each_rank_an_early_and_a_late_part():
    layout = replace(FINE, cp=4, dp=1, seq=8196)
    (wrong,) = check(LLAMA, CLUSTER, layout)
    assert (wrong.key, wrong.nearest) == ("seq", 8200)


def test_more_stages_than_layers():
    model = replace(LLAMA, layers=6)
    (wrong,) = check(model, CLUSTER, replace(FINE, pp=16, dp=1))
    assert (wrong.key, wrong.nearest) == ("pp", 6)


def test_experts_are_spread_over_ranks_that_divide_them():
    model = preset("Mixtral 8x7B")
    assert check(model, CLUSTER, replace(FINE, ep=8)) == []
    (wrong,) = check(model, CLUSTER, replace(FINE, ep=3))
    assert (wrong.key, wrong.nearest) == ("ep", 4)


@pytest.mark.parametrize(("gpu", "precision", "nearest"), [("A100 80GB", "fp8", "bf16"), ("V100", "bf16", "fp16")])
def test_a_gpu_has_the_precision_or_not(gpu, precision, nearest):
    cluster = replace(CLUSTER, gpu=gpu_called(gpu))
    (wrong,) = check(LLAMA, cluster, replace(FINE, precision=precision))
    assert (wrong.key, wrong.nearest) == ("precision", nearest)


def test_nearest_is_by_ratio_and_the_smaller_of_two():
    assert nearest(6, [1, 4, 9]) == 4
    assert nearest(6, [4, 8]) == 8
    assert nearest(2, [1, 4]) == 1
    assert nearest(3, []) is None
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_ranks_that_share_states():
    assert FINE.shard_ranks == 1
    assert replace(FINE, zero=3, cp=2).shard_ranks == 8
    assert replace(FINE, zero=1, shard=2).shard_ranks == 2
    assert (FINE.gpus, FINE.microbatches, FINE.tokens) == (64, 16, 64 * 8192)

"""The search against brute force, what it says about losers, and specifications that cannot be met."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from dtprof.catalogue.hardware import gpu_of
from dtprof.errors import InputError
from dtprof.plan.constants import Constants
from dtprof.plan.memory import fits, peak_bytes
from dtprof.plan.presets import preset
from dtprof.plan.search import Found, Wanted, search
from dtprof.plan.search.explain import megatron, neighbours, parts, rule_of_thumb
from dtprof.plan.search.found import Candidate, pareto
from dtprof.plan.search.space import Space
from dtprof.plan.search.spec import read
from dtprof.plan.software import software
from dtprof.plan.spec import Cluster, Layout, Model, Moe, Recompute, check
from dtprof.plan.time.step import Estimator

GPU = gpu_of("NVIDIA H100 80GB HBM3")
assert GPU is not None
SMALL = Model("small", 12, 1024, 12, 4096, 32000, 4, 64, gated=True)
EXPERTS = replace(SMALL, name="experts", moe=Moe(8, 2, 1024))


def cluster(gpus: int, gigabytes: float = 80) -> Cluster:
    assert GPU is not None
    return Cluster(GPU, gpus, min(gpus, 8), int(gigabytes * 1e9), 450, 400)


def wanted(model: Model = SMALL, gpus: int = 8, gigabytes: float = 80, **more: Any) -> Wanted:
    known: dict[str, Any] = {"seq": 4096, "global_batch": 24, **more}
    return Wanted(model, cluster(gpus, gigabytes), software("fsdp2"), **known)


def clock_of(one: Wanted):  # type: ignore[no-untyped-def]
    return lambda cluster: Estimator(one.model, cluster, one.software, Constants())


def found(one: Wanted) -> Found:
    return search(one, clock_of(one))


def brute_force(one: Wanted) -> set[Layout]:
    """Every layout in the same ranges that keeps all constraints."""
    sizes, moe = range(1, one.cluster.gpus + 1), one.model.moe
    out = set()
    for tp, pp, cp, dp in product(sizes, sizes, (1, 2), sizes):
        if tp * pp * cp * dp != one.cluster.gpus:
            continue
        for micro, vpp, ep in product((1, 2, 4, 8, 16, 32), range(1, 13), range(1, 9) if moe else (1,)):
            layout = Layout(dp, micro, one.global_batch, one.seq, tp, pp, vpp, cp, ep, sequence_parallel=tp > 1)
            layout = replace(layout, schedule="interleaved" if vpp > 1 else "1f1b")
            if not check(one.model, one.cluster, layout) and one.model.layers % (pp * vpp) in ((0,) if vpp > 1 else range(12)):
                out.add(layout)
    return out


@pytest.mark.parametrize("model", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_the_space_is_all_that_keeps_the_constraints_and_nothing_else(model: Model) -> None:
    one = wanted(model, recompute=("none",), zero=(0,))
    space = Space(one, 8, one.global_batch, lambda *_: None)
    every = [layout for grid in space.grids() for layout in space.layouts(grid)]
    assert len(every) == len(set(every))
    expected = {layout for layout in brute_force(one) if layout.vpp in (1, 2, 3, 4, 5, 6, 8)}
    assert set(every) == expected


def test_the_best_is_the_fastest_of_all_that_fit() -> None:
    one = wanted(gigabytes=16)
    clock = clock_of(one)(one.cluster)
    best = min(
        clock.step(layout).seconds
        for plain in brute_force(one)
        for recompute, zero in product(get_args(Recompute), (0, 1, 2, 3))
        for layout in [replace(plain, recompute=recompute, zero=zero if plain.dp * plain.cp > 1 else 0)]
        if zero < 2 or plain.pp == 1
        if fits(peak_bytes(one.model, one.cluster, layout, one.software), one.cluster) == "fits"
    )
    result = found(one)
    assert result.best is not None
    assert result.best.seconds == pytest.approx(best, rel=1e-9)
    assert result.best.fit == "fits"
    assert result.best.memory.device <= one.cluster.memory_bytes
    memory = next(miss for miss in result.misses if miss.reason == "memory")
    assert memory.count > 0
    assert re.search(r"needs 16\.\d.GB of 16\.0.GB", memory.nearest)


def test_no_layout_of_the_front_is_beaten_by_another() -> None:
    result = found(wanted(gpus=16, gigabytes=40))
    for one, other in product(result.front, result.front):
        if one is not other:
            assert not (other.score <= one.score and other.memory.device <= one.memory.device and other.cost <= one.cost)
    assert result.best in pareto(list(result.front))


def test_what_is_fixed_stays_and_what_is_named_is_chosen_from() -> None:
    result = found(wanted(gpus=16, tp=(2,), zero=(1,), micro_batch=(1,), recompute=("full",)))
    assert result.best is not None
    for one in result.ranked:
        assert (one.layout.tp, one.layout.micro_batch, one.layout.recompute) == (2, 1, "full")


def test_sizes_of_the_cluster_are_compared_by_cost() -> None:
    result = found(replace(wanted(global_batch=64, price=2.0), gpus=(4, 8)))
    used = {one.layout.gpus for one in result.front}
    assert used == {4, 8}
    cheap = min(result.front, key=lambda one: one.cost)
    assert cheap.cost == pytest.approx(2.0 * cheap.seconds * cheap.layout.gpus / 3600 / cheap.layout.tokens * 1e9)


def test_a_free_batch_weighs_speed_against_data() -> None:
    one = wanted(gpus=16, global_batch=0, critical_batch=512)
    result = found(one)
    assert result.best is not None
    assert result.best.layout.global_batch in one.batches
    assert result.best.score == pytest.approx(result.best.seconds * (1 + 512 / result.best.layout.global_batch))
    steps = {batch: found(replace(one, global_batch=batch)).best for batch in one.batches}
    scores = {batch: best.seconds * (1 + 512 / batch) for batch, best in steps.items() if best}
    assert result.best.score == pytest.approx(min(scores.values()))


def test_a_model_that_is_too_large_says_what_would_do_and_that_does() -> None:
    one = wanted(preset("Llama 3 8B"), gpus=1, gigabytes=40, global_batch=8)
    result = found(one)
    assert result.best is None
    assert next(miss for miss in result.misses if miss.reason == "memory").nearest.endswith("of 40.0\u00a0GB")
    gpus = next(int(hit[1]) for text in result.mend if (hit := re.match(r"it fits on (\d+)", text)))
    assert found(wanted(preset("Llama 3 8B"), gpus=gpus, gigabytes=40, global_batch=max(8, gpus))).best is not None
    half = found(wanted(preset("Llama 3 8B"), gpus=gpus // 2, gigabytes=40, global_batch=max(8, gpus))).best
    assert half is None or half.fit == "tight"
    assert any("offload" in text and "host" in text for text in result.mend)


def test_a_host_that_is_too_small_is_no_place_for_a_model() -> None:
    one = wanted(preset("Llama 3 70B"), gpus=1, gigabytes=80, global_batch=32, seq=8192)
    assert one.cluster.host_memory_bytes == 0
    alone = found(one)
    assert alone.best is None
    assert re.match(r"it fits on \d+\sGPUs", alone.mend[0])
    assert not any("offload" in text for text in alone.mend)
    allowed = found(replace(one, offload=("parameters", "activations")))
    assert allowed.best is None
    assert "of the host's memory" in next(miss for miss in allowed.misses if miss.reason == "memory").nearest
    large = found(replace(one, cluster=replace(one.cluster, host_memory_bytes=2 * 10**12)))
    assert re.match(r"it fits on \d+\sGPUs", large.mend[0])
    assert any("offload" in text and "1.80" in text for text in large.mend)


def test_offloading_that_is_allowed_is_used_only_where_nothing_fits_without() -> None:
    allowed = ("optimizer", "activations")
    large = found(wanted(preset("Llama 3 8B"), gpus=1, gigabytes=80, global_batch=8, offload=allowed))
    assert large.best is not None
    assert large.best.layout.offload[0] == "optimizer"
    assert large.best.memory.host > 0
    small = found(wanted(offload=allowed))
    assert small.best is not None
    assert small.best.layout.offload == ()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tp": (5,)}, "tp = 4 would divide"),
        ({"pp": (16,)}, "pp = 8 would divide"),
        ({"dp": (8,), "global_batch": 20}, "global_batch = 16"),
        ({"model": EXPERTS, "ep": (16,)}, "16 does not divide 8 experts and 8 ranks; 8 would do"),
        ({"model": EXPERTS, "etp": 3}, "etp = 4 would divide"),
        ({"dp": (8,), "micro_batch": (2,)}, "the 3 sequences of a rank; 1 would do"),
    ],
)
def test_numbers_that_do_not_divide_say_which_would(more: dict[str, Any], message: str) -> None:
    result = found(wanted(**more))
    assert result.best is None
    assert any(message in text for text in result.mend), result.mend
    assert result.misses


def test_a_precision_that_the_gpu_lacks_is_a_constraint() -> None:
    volta = gpu_of("Tesla V100-SXM2-32GB")
    assert volta is not None
    one = replace(wanted(), cluster=replace(cluster(8, 32), gpu=volta))
    result = found(one)
    assert result.best is None
    assert any("no bf16 matrix products; fp16 would do" in text for text in result.mend)
    assert found(replace(one, precision=("fp16",))).best is not None


def test_a_large_search_is_megatrons_shape() -> None:
    model = preset("Llama 3 70B")
    one = Wanted(model, cluster(256), software("megatron-core"), 8192, 512)
    result = found(one)
    best = result.best
    assert best is not None
    assert best.layout.tp <= 8
    assert not check(model, one.cluster, best.layout)
    clock = clock_of(one)(one.cluster)
    rule = rule_of_thumb(one, clock)
    assert rule is not None
    assert rule.layout.tp == 8
    assert rule.seconds >= best.seconds
    told = megatron(one, best, clock)
    assert "node" in told[0]
    assert "rule" in told[-1]
    crossing = next(miss for miss in result.misses if "over nodes" in miss.reason)
    assert crossing.layout is not None
    assert crossing.layout.tp > 8


def test_neighbours_are_judged_by_constraint_memory_and_time() -> None:
    one = Wanted(preset("Llama 3 70B"), cluster(64), software("megatron-core"), 8192, 64)
    best = found(one).best
    assert best is not None
    clock = clock_of(one)(one.cluster)
    around = neighbours(one, best, clock)
    assert all(near.layout != best.layout for near in around)
    for near in around:
        if near.seconds is None:
            broken = check(one.model, one.cluster, near.layout)
            full = fits(peak_bytes(one.model, one.cluster, near.layout, one.software), one.cluster)
            assert near.why.startswith("cannot be" if broken else "does not fit")
            assert broken or full != "fits"
        else:
            assert near.seconds == clock.step(near.layout).seconds
    assert sum(parts(best.time).values()) == pytest.approx(best.seconds)


SPEC = """
model = "Llama 3 8B"
software = "fsdp2-compile"

[cluster]
gpu = "H100 SXM"
gpus = 16
inter = "8x400 Gbit/s"

[layout]
seq = 8192
global_batch = 64
zero = 3

[search]
tp = [1, 2]
price_per_gpu_hour = 2.5
"""


def test_a_specification_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    one = read(path).wanted
    assert one is not None
    assert (one.seq, one.global_batch, one.zero, one.tp, one.price) == (8192, 64, (3,), (1, 2), 2.5)
    assert one.software.name == "fsdp2-compile"
    best = found(one).best
    assert best is not None
    assert best.layout.zero == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = "Llama 3 8B"', "", "model is missing"),
        ("seq = 8192", "", "layout.seq is missing"),
        ("global_batch = 64", "", "critical_batch"),
        ("zero = 3", "zero = 4", "ZeRO has stages 0 to 3"),
        ("zero = 3", "colour = 3", "layout.colour is not known"),
        ("tp = [1, 2]", "tp = [0]", "search.tp = 0"),
        ("tp = [1, 2]", 'tp = ["one"]', "search.tp = 'one'"),
        ("tp = [1, 2]", "zero = [1]", "is in \\[layout\\] and in \\[search\\]"),
        ("tp = [1, 2]", 'recompute = ["some"]', "none, selective, full"),
        ("tp = [1, 2]", "gpus = [12]", "no full nodes"),
        ("price_per_gpu_hour = 2.5", 'price_per_gpu_hour = "much"', "give a number"),
        ('software = "fsdp2-compile"', 'software = "mine"', "no software is called"),
        ('software = "fsdp2-compile"', "[other]", "\\[other\\] is not known"),
        ("seq = 8192", "seq = true", "whole number"),
        ("tp = [1, 2]", "tp = []", "search.tp = \\[\\] leaves nothing"),
        ("Llama 3 8B", "Lama 3 8B", "no preset is called 'Lama 3 8B'; near it: .*Llama 3 8B"),
    ],
)
def test_a_specification_that_is_wrong_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "spec.toml"
    assert old in SPEC
    path.write_text(SPEC.replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(error.value).count(str(path)) == 1


def test_a_specification_without_a_cluster_is_told_how_to_name_one(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('model = "Llama 3 8B"\n')
    with pytest.raises(InputError, match=r"cluster is missing; add \[cluster\] with gpu"):
        read(path)


def test_equal_candidates_prefer_less_memory() -> None:
    best = found(wanted()).best
    assert isinstance(best, Candidate)
    assert best.tokens_per_s == pytest.approx(24 * 4096 / best.seconds)


def test_the_specification_in_the_documentation_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "planner.md").read_text()
    first, module = re.findall(r"^```toml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[:2]
    (tmp_path / "search.toml").write_text(first)
    one = read(tmp_path / "search.toml").wanted
    assert one is not None
    assert (one.cluster.gpus, one.cluster.inter_gb_s, one.tp) == (1024, 400.0, (1, 2, 4, 8))
    (tmp_path / "module.toml").write_text(module)
    assert read(tmp_path / "module.toml").module == "train.py:build"

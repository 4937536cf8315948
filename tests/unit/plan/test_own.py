"""A measured run as a plan: what its job recorded, a calibration by its step, and what other layouts would make of it."""

from dataclasses import replace
from typing import Any

import pytest

from dtprof.advise.rules.layout import Bubble, Faster, LessRecomputation, LowerStage, WideTensor
from dtprof.analyse import study_of
from dtprof.errors import InputError
from dtprof.plan.calibrated import calibration
from dtprof.plan.choices import Choices, choices, options
from dtprof.plan.constants import Constants
from dtprof.plan.own import Own, calibrated, plan_of, slower
from dtprof.plan.search import Wanted, search
from dtprof.plan.spec import Layout
from dtprof.plan.time.step import Estimator
from dtprof.run import Manifest, MemoryStore, Part, Run
from dtprof.table import Table

H100 = "NVIDIA H100 80GB HBM3"
KNOBS = {"model": "Llama 3 8B", "seq": 8192, "batch": 1, "accumulate": 4, "precision": "bf16", "strategy": "zero1"}


def run_of(
    seconds: float = 3.0, ranks: int = 8, mesh: dict[str, int] | None = None, device: str = H100, hosts: int = 1, **knobs: Any
) -> Run:
    """A run of three steps; each rank's part says no more than its steps."""
    parts = [Part(ordinal=r, rank=r, host=f"host{r * hosts // ranks}", device=device, world_size=ranks) for r in range(ranks)]
    steps = [
        {"step": n, "ts": round(n * seconds * 1e9), "host_dur": round(seconds * 1e9), "kind": "train", "complete": True}
        for n in range(3)
    ]
    tables = {("steps", r): Table.from_rows("steps", steps) for r in range(ranks)}
    manifest = Manifest(
        world_size=ranks, mesh=mesh or {"dp": ranks}, knobs={**KNOBS, **knobs}, devices=[device], parts=parts, job="mine"
    )
    return Run(manifest, MemoryStore(tables), "runs/mine", "dtprof")


def own_of(run: Run) -> Own:
    found = plan_of(run)
    assert isinstance(found, Own), found
    return found


def expected_s(run: Run) -> float:
    own = own_of(run)
    rests = calibration(own.model, own.cluster, own.software)
    return Estimator(own.model, own.cluster, own.software, rests.constants).step(own.layout).seconds


def test_what_a_job_records_is_its_plan() -> None:
    own = own_of(run_of(ranks=16, mesh={"pp": 2, "dp": 4, "tp": 2}, hosts=2, checkpointing="full", strategy="zero3"))
    assert own.layout == Layout(4, 1, 16, 8192, tp=2, pp=2, sequence_parallel=True, zero=3, recompute="full")
    assert own.model.name == "Llama 3 8B"
    assert (own.cluster.gpus, own.cluster.gpus_per_node, own.cluster.memory_bytes) == (16, 8, 80 * 10**9)
    assert own.step_s == pytest.approx(3.0)
    sharded = own_of(run_of(mesh={"replicate": 2, "shard": 4}, strategy="hsdp"))
    assert (sharded.layout.dp, sharded.layout.zero, sharded.layout.shard) == (8, 3, 4)


def test_the_knobs_of_a_sample_job_are_a_model() -> None:
    knobs = {"model": None, "layers": 4, "dim": 256, "heads": 4, "vocabulary": 1000, "experts": 8, "experts_per_token": 2}
    own = own_of(run_of(mesh={"dp": 2, "ep": 4}, **knobs))
    assert (own.model.layers, own.model.ffn, own.layout.dp, own.layout.ep) == (4, 1024, 8, 4)
    assert own.model.moe is not None
    assert (own.model.moe.experts, own.model.moe.top_k) == (8, 2)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"device": "cpu"}, "hardware catalogue"),
        ({"model": None}, "does not record its model"),
        ({"model": "mine"}, "not a preset"),
        ({"seq": None}, "knobs seq and batch"),
        ({"emulate": "layers.toml"}, "emulated"),
        ({"mesh": {"dp": 4, "colour": 2}}, "colour"),
        ({"mesh": {"tp": 3}, "ranks": 3}, "cannot be laid out"),
    ],
)
def test_what_is_not_recorded_is_told(more: dict[str, Any], reason: str) -> None:
    run = run_of(**more)
    found = plan_of(run)
    assert isinstance(found, str)
    assert reason in found
    for rule in (WideTensor(), Bubble(), LowerStage(), LessRecomputation(), Faster()):
        assert list(rule.find(study_of(run))) == []
        assert reason in rule.abstains(study_of(run))


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_a_calibration_predicts_its_own_run(factor: float) -> None:
    run = run_of()
    slow = run_of(seconds=factor * expected_s(run))
    own = own_of(slow)
    wanted = Wanted(own.model, replace(own.cluster, memory_bytes=200 * 10**9), own.software, 8192, 32)
    rests = calibrated(slow, own.cluster.gpu, calibration(own.model, own.cluster, own.software))
    again = Estimator(own.model, own.cluster, own.software, rests.constants).step(own.layout).seconds
    assert again == pytest.approx(own.step_s, rel=1e-6)
    assert "runs/mine" in rests.name
    assert rests.high / rests.low < 1.4
    best = search(wanted, lambda cluster: Estimator(own.model, cluster, own.software, rests.constants)).best
    assert best is not None
    assert best.seconds <= again * 1.000001


def test_a_calibration_of_something_else_is_refused() -> None:
    own = own_of(run_of())
    rests = calibration(own.model, own.cluster, own.software)
    with pytest.raises(InputError, match="A100"):
        calibrated(run_of(device="NVIDIA A100-SXM4-80GB"), own.cluster.gpu, rests)
    with pytest.raises(InputError, match="the model expects"):
        calibrated(run_of(seconds=500.0), own.cluster.gpu, rests)
    with pytest.raises(InputError, match="knobs"):
        calibrated(run_of(seq=None), own.cluster.gpu, rests)


def test_slower_constants_slow_compute_alone() -> None:
    own = own_of(run_of(mesh={"dp": 1, "tp": 8}))
    plain = Estimator(own.model, own.cluster, own.software, Constants()).step(own.layout).busy
    twice = Estimator(own.model, own.cluster, own.software, slower(Constants(), 2.0)).step(own.layout).busy
    assert 1.8 * plain.products < twice.products <= 2 * plain.products
    assert twice.tp == plain.tp


def test_options_say_what_they_save_and_cost() -> None:
    run = run_of()
    found = choices(run_of(seconds=expected_s(run), batch=2))
    assert isinstance(found, Choices)
    assert found.now.seconds == pytest.approx(found.own.step_s or 0.0, rel=1e-6)
    priced = {option.name: option for option in options(found)}
    assert {"recompute full", "ZeRO-2", "ZeRO-3", "micro-batches of 1, twice as many", "optimizer on the host"} <= set(priced)
    assert priced["recompute full"].seconds > 0
    assert all(option.saved > 0 for option in priced.values())
    assert list(priced.values()) == sorted(priced.values(), key=lambda option: option.seconds)


def test_what_a_run_takes_fits_whatever_the_model_says() -> None:
    run = run_of(batch=8)
    found = choices(run_of(seconds=expected_s(run), batch=8))
    assert isinstance(found, Choices)
    assert found.now.fit == "no"
    same, more, less = found.changed(), found.changed(micro_batch=16, global_batch=512), found.changed(micro_batch=4)
    assert same is not None
    assert same.fit == "fits"
    assert more is not None
    assert more.fit == "no"
    assert less is not None
    assert less.fit == "fits"


def test_a_run_that_no_layout_explains_gets_no_advice() -> None:
    found = choices(run_of(seconds=100.0))
    assert isinstance(found, str)
    assert "something else than its layout" in found


def found_by(rule: Any, **more: Any) -> list[Any]:
    run = run_of(seconds=1.05 * expected_s(run_of(**more)), **more)
    return list(rule.find(study_of(run)))


def test_recomputation_that_is_not_needed() -> None:
    (finding,) = found_by(LessRecomputation(), checkpointing="full", batch=1, strategy="zero3", ranks=64, mesh={"dp": 64})
    assert finding.title.startswith("recompute full -> ")
    assert "to spare" in finding.title
    assert finding.prediction.seconds_per_step > 0
    assert found_by(LessRecomputation()) == []


def test_sharding_that_is_not_needed() -> None:
    more = {
        "model": "Llama 3.2 1B",
        "strategy": "zero3",
        "ranks": 64,
        "hosts": 8,
        "mesh": {"dp": 64},
        "accumulate": 8,
        "seq": 2048,
    }
    (finding,) = found_by(LowerStage(), **more)
    assert finding.title.startswith("ZeRO-")
    assert finding.title.endswith("drop ZeRO-3")
    assert found_by(LowerStage(), **{**more, "strategy": "ddp"}) == []


def test_tensor_parallelism_over_nodes() -> None:
    more = {"model": "Llama 3 70B", "ranks": 64, "hosts": 8, "accumulate": 32, "strategy": "zero1"}
    (finding,) = found_by(WideTensor(), **more, mesh={"pp": 2, "dp": 2, "tp": 16})
    assert finding.title.startswith("TP=16 crosses nodes of 8")
    assert found_by(WideTensor(), **more, mesh={"pp": 4, "dp": 2, "tp": 8}) == []


def test_too_few_micro_batches() -> None:
    more = {"model": "Llama 3 70B", "ranks": 64, "hosts": 8, "strategy": "zero1", "batch": 2}
    (finding,) = found_by(Bubble(), **more, accumulate=8, mesh={"pp": 8, "dp": 1, "tp": 8})
    assert "8 -> 16 micro-batches" in finding.title
    assert found_by(Bubble(), **more, accumulate=64, mesh={"pp": 8, "dp": 1, "tp": 8}) == []


def test_another_layout_that_is_much_faster() -> None:
    (finding,) = found_by(Faster(), mesh={"dp": 1, "tp": 8}, accumulate=16)
    assert "is predicted to be" in finding.title
    run = run_of(mesh={"dp": 1, "tp": 8}, accumulate=16)
    own = own_of(run)
    best = search(
        replace(Wanted(own.model, own.cluster, own.software, 8192, 16)),
        lambda cluster: Estimator(own.model, cluster, own.software, Constants()),
    ).best
    assert best is not None
    assert found_by(Faster(), batch=best.layout.micro_batch, accumulate=best.layout.microbatches) == []

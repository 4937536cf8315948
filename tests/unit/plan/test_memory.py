"""Memory per rank, against the papers' formulas, what torch saves for a backward pass, and published peaks."""

from dataclasses import replace

import pytest

from dtprof.catalogue.hardware import gpu_of
from dtprof.model.pipeline.schedules import order
from dtprof.plan.memory import Memory, fits, peak_bytes, per_stage
from dtprof.plan.memory.activations import per_layer
from dtprof.plan.memory.flight import in_flight
from dtprof.plan.memory.states import held, states
from dtprof.plan.presets import preset
from dtprof.plan.sizes import total_params
from dtprof.plan.spec import Cluster, Layout, Model, Software
from dtprof.plan.stages import stages

GPU = gpu_of("NVIDIA H100 80GB HBM3")
assert GPU is not None
CLUSTER = Cluster(GPU, 8, 8, 80 * 10**9, 450, 400)
EAGER = Software("eager", compiled=False, attention="flash-2")
FSDP2 = Software("fsdp2", compiled=False, attention="flash-2", fsdp=2)
GPT3 = replace(preset("GPT-3 175B"), vocab=51200)
GIB = 2**30


def layer(layout: Layout, model: Model = GPT3) -> float:
    return per_layer(model, layout, EAGER, experts=False).kept


@pytest.mark.parametrize("t", [1, 8])
@pytest.mark.parametrize("parallel", [False, True])
def test_activations_of_a_layer_are_korthikantis(t: int, parallel: bool) -> None:
    s, b, h, a = 2048, 2, 12288, 96
    known = Layout(8, b, 16, s, tp=t, sequence_parallel=parallel, attention="unfused")
    outside, inside, scores = 10.0, 24.0, 5 * a * s / h
    divided = outside / t if parallel else outside
    for recompute, factor in (("none", divided + inside / t + scores / t), ("selective", divided + inside / t)):
        found = layer(replace(known, recompute=recompute))  # type: ignore[arg-type]
        assert found == pytest.approx(s * b * h * factor, rel=0.001)
    assert layer(replace(known, recompute="full")) == 2 * s * b * h / (t if parallel else 1)
    # without scores, and without dropout's two masks
    flash = layer(replace(known, attention="flash"))
    masks = 2 * s * b * h / (t if parallel else 1)
    assert flash == pytest.approx(layer(replace(known, recompute="selective")) - masks, rel=0.001)


def test_a_layer_keeps_what_torch_saves_of_it() -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    hidden, heads, keys, ffn, seq, batch = 64, 8, 2, 176, 32, 3
    size = hidden // heads
    weights = {
        "q": (hidden, hidden), "k": (keys * size, hidden), "v": (keys * size, hidden), "o": (hidden, hidden),
        "gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn),
    }  # fmt: skip
    w = {name: torch.randn(shape, requires_grad=True) for name, shape in weights.items()}
    x = torch.randn(batch, seq, hidden, requires_grad=True)
    saved: dict[int, int] = {}

    def keep(tensor):  # type: ignore[no-untyped-def]
        storage = tensor.untyped_storage()
        if all(storage.data_ptr() != one.untyped_storage().data_ptr() for one in w.values()):
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = functional.layer_norm(x, (hidden,))
        q, k, v = ((y @ w[name].T).unflatten(-1, (-1, size)).transpose(1, 2) for name in "qkv")
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        z = x + z.transpose(1, 2).flatten(2) @ w["o"].T
        y = functional.layer_norm(z, (hidden,))
        out = z + (functional.silu(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T
    model = Model("m", 1, hidden, heads, ffn, 10, keys, size, gated=True)
    known = Layout(1, batch, batch, seq, precision="fp32")
    # mean and deviation of two norms are left out of the formula; torch repeats fewer heads of keys than of queries
    repeated = 2 * (heads - keys) * size * 4 * batch * seq
    assert out.requires_grad
    assert sum(saved.values()) in (
        pytest.approx(layer(known, model), rel=0.02),
        pytest.approx(layer(known, model) + repeated, rel=0.02),
    )


def test_states_are_those_of_the_zero_paper() -> None:
    # figure 1: 7.5B parameters, 64 ranks, K = 12; gradients in 16 bits
    model = preset("GPT 7.5B")
    known = Layout(64, 1, 64, 1024, gradient_dtype="bf16")
    mine = held(model, known, stages(model, known)[0])
    scale = 7.5e9 / mine.all
    for zero, gigabytes in ((0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)):
        found = states(replace(known, zero=zero), EAGER, mine)
        assert (found.parameters + found.gradients + found.optimizer) * scale / 1e9 == pytest.approx(gigabytes, rel=0.005)
    assert states(replace(known, zero=3), FSDP2, mine).gradients == pytest.approx(4 * mine.all / 64)


def test_offloaded_states_lie_on_the_host() -> None:
    known = Layout(8, 1, 8, 2048, zero=3)
    model = preset("Llama 3 8B")
    plain = peak_bytes(model, CLUSTER, known, FSDP2)
    moved = peak_bytes(model, CLUSTER, replace(known, offload=("optimizer",)), FSDP2)
    assert moved.host == plain.optimizer > 0 == moved.optimizer
    assert plain.allocated - moved.allocated == plain.optimizer
    both = peak_bytes(model, CLUSTER, replace(known, offload=("parameters", "activations")), FSDP2)
    assert both.states == 0
    assert both.host > plain.states
    assert 0 < both.activations < plain.activations


@pytest.mark.parametrize("name", ["Llama 3 70B", "DeepSeek-V3", "Qwen3 0.6B", "GPT-2 1.5B"])
def test_ranks_hold_every_parameter_once(name: str) -> None:
    model = preset(name)
    known = Layout(1, 1, 8, 1024, pp=4, vpp=2)
    copies = model.vocab * model.hidden if model.tied else 0
    assert sum(held(model, known, stage).all for stage in stages(model, known)) == total_params(model) + copies
    if model.moe is not None:
        spread = replace(known, tp=4, ep=8, dp=2)
        for stage, whole in zip(stages(model, spread), stages(model, known), strict=True):
            assert held(model, spread, stage).experts * 8 == held(model, known, whole).experts


@pytest.mark.parametrize(
    ("schedule", "per_rank"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1)]
)
@pytest.mark.parametrize("count", [4, 8, 12])
def test_micro_batches_in_flight_are_those_of_the_schedule(schedule: str, per_rank: int, count: int) -> None:
    ranks = 4
    known = Layout(1, 1, count, 64, pp=ranks, vpp=per_rank, schedule=schedule)  # type: ignore[arg-type]
    for rank, actions in order(schedule, ranks, count, per_rank).items():
        live = most = 0
        for action in actions:
            live += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
            most = max(most, live)
        assert in_flight(known, rank) == most / per_rank, f"rank {rank}"


@pytest.mark.parametrize(
    ("dp", "cp", "seq", "batch", "recompute", "compiled", "gib"),
    [
        (8, 1, 8192, 2, "selective", False, 82.4),
        (8, 1, 8192, 2, "selective", True, 77.0),
        (128, 1, 8192, 2, "selective", False, 67.0),
        (128, 1, 8192, 2, "selective", True, 62.0),
        (8, 1, 32768, 1, "full", True, 83.9),
        (1, 8, 262144, 1, "full", True, 84.5),
    ],
)
def test_published_peaks_of_torchtitan(
    dp: int, cp: int, seq: int, batch: int, recompute: str, compiled: bool, gib: float
) -> None:
    # pytorch/torchtitan, benchmarks of December 2024: Llama 3.1 8B, FSDP2, max_reserved in GiB
    known = Layout(dp, batch, dp * batch, seq, cp=cp, zero=3, recompute=recompute)  # type: ignore[arg-type]
    found = peak_bytes(preset("Llama 3 8B"), CLUSTER, known, replace(FSDP2, compiled=compiled))
    assert found.reserved / GIB == pytest.approx(gib, rel=0.08)


def test_published_peak_of_a_mixture_of_experts() -> None:
    # Megatron-Bridge, Moonlight on 8 GPUs with bf16 gradients and moments: 36.6 GB allocated
    known = Layout(4, 1, 4, 4096, tp=2, ep=8, sequence_parallel=True, zero=1, gradient_dtype="bf16", optimizer="adam-bf16")
    fused = Software("megatron-core", True, "cudnn", fused_loss=True)
    assert peak_bytes(preset("Moonlight 16B-A3B"), CLUSTER, known, fused).allocated / 1e9 == pytest.approx(36.6, rel=0.10)


def test_more_parallelism_never_takes_more_states_and_full_recomputation_keeps_least() -> None:
    model = preset("Llama 3 70B")
    known = Layout(4, 1, 32, 8192, tp=2, pp=2, sequence_parallel=True, zero=1)
    base = peak_bytes(model, CLUSTER, known, EAGER)
    for key in ("tp", "pp", "dp"):
        wider = peak_bytes(model, CLUSTER, replace(known, **{key: 2 * getattr(known, key)}), EAGER)
        assert wider.states < base.states, key
    kept = [
        peak_bytes(model, CLUSTER, replace(known, recompute=mode, attention="unfused"), EAGER).activations
        for mode in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 3


def test_gpipe_holds_logits_and_activations_of_all_micro_batches() -> None:
    model = preset("Llama 3 8B")
    first, *_, last = per_stage(model, CLUSTER, Layout(1, 1, 16, 4096, pp=4), EAGER)
    all_first, *_, all_last = per_stage(model, CLUSTER, Layout(1, 1, 16, 4096, pp=4, schedule="gpipe"), EAGER)
    assert all_first.activations == 4 * first.activations
    assert all_last.activations == pytest.approx(16 * last.activations + 15 * 4 * 4096 * model.vocab)


def test_the_boundary() -> None:
    def memory(allocated: int) -> Memory:
        return Memory(0, allocated, 0, 0, 0, 0, 0, 500_000_000)

    assert fits(memory(70 * 10**9), CLUSTER) == "fits"
    assert fits(memory(79 * 10**9), CLUSTER) == "tight"
    # the card that is called 80 GB has 80 GiB at most
    assert fits(memory(85 * 10**9), CLUSTER) == "tight"
    assert fits(memory(86 * 10**9), CLUSTER) == "no"
    assert memory(70 * 10**9).document()["device_bytes"] == 77_500_000_000


@pytest.mark.parametrize("name", ["Llama 3 405B", "DeepSeek-V3"])
@pytest.mark.parametrize(("schedule", "per_rank"), [("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)])
def test_the_peak_is_that_of_the_worst_of_all_stages(name: str, schedule: str, per_rank: int) -> None:
    known = Layout(2, 1, 32, 4096, tp=4, pp=8, vpp=per_rank, schedule=schedule, zero=1)  # type: ignore[arg-type]
    every = per_stage(preset(name), CLUSTER, known, EAGER)
    assert len(every) == 8
    assert peak_bytes(preset(name), CLUSTER, known, EAGER).device == max(one.device for one in every)

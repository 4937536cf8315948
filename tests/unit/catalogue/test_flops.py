"""FLOPs by convention, against torch's own counter, published training times and the papers' relations."""

import pytest

from dtprof.catalogue.flops import (
    CONVENTIONS,
    Counted,
    causal,
    chinchilla,
    cost_per_million_tokens,
    device_hours,
    megatron,
    megatron_recomputed,
    megatron_selective,
    palm,
    palm_recomputed,
    six_n,
    utilisation,
)

GPT3 = Counted(175e9, 96, 12288, 2048, 51200)
DAY = 86400.0


def test_megatrons_count_is_what_torch_counts_of_a_transformer() -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    layers, hidden, seq, vocab = 2, 32, 24, 80
    weights = [torch.zeros(hidden, width, requires_grad=True) for _ in range(layers) for width in (4 * hidden, 8 * hidden)]
    head = torch.zeros(hidden, vocab, requires_grad=True)
    x = torch.zeros(seq, hidden, requires_grad=True)
    with counter:
        y = x
        for qkvo, mlp in zip(weights[::2], weights[1::2], strict=True):
            q, k, v, o = (y @ w for w in qkvo.chunk(4, dim=1))
            y = (q @ k.T) @ v + o
            up, down = mlp.chunk(2, dim=1)
            y = (y @ up) @ down.T
        (y @ head).sum().backward()
    assert counter.get_total_flops() == megatron(Counted(0, layers, hidden, seq, vocab)) * seq


def test_conventions_relate_as_the_papers_say() -> None:
    assert six_n(GPT3) < causal(GPT3) < palm(GPT3) < palm_recomputed(GPT3)
    assert palm(GPT3) - causal(GPT3) == causal(GPT3) - six_n(GPT3) == 6.0 * 96 * 12288 * 2048
    # N = 12 L h^2 + V h
    counted = Counted(12 * 96 * 12288**2 + 51200 * 12288, 96, 12288, 2048, 51200)
    assert megatron(counted) == pytest.approx(palm(counted))
    # the forward pass of the layers a second time: a third of what the layers take
    head = 6.0 * 51200 * 12288
    assert megatron_recomputed(counted) - megatron(counted) == pytest.approx((megatron(counted) - head) / 3)
    # the two products of attention a second time
    assert megatron_selective(counted) - megatron(counted) == pytest.approx(4.0 * 96 * 12288 * 2048 * 3)


def test_wider_attention_counts_by_its_own_width() -> None:
    assert palm(Counted(1, 2, 8, 16, attention=32)) == 6 + 12 * 2 * 32 * 16


@pytest.mark.parametrize(
    ("params", "tokens", "gpus", "tflops", "days"), [(175e9, 300e9, 1024, 140, 34), (1e12, 450e9, 3072, 163, 84)]
)
def test_published_training_times(params: float, tokens: float, gpus: int, tflops: float, days: float) -> None:
    # Narayanan et al. 2021, section 5.1: 8 FLOPs per parameter and token, with recomputation
    model = Counted(params, 96 if params < 1e12 else 128, 12288 if params < 1e12 else 25600, 2048, 51200)
    seconds = megatron_recomputed(model) * tokens / (gpus * tflops * 1e12)
    assert seconds / DAY == pytest.approx(days, rel=0.05)


def test_a_step_beyond_64_bits_is_exact() -> None:
    # 291 thousand million parameters, 3072 sequences of 2048 tokens: above 2^63
    model = Counted(291e9, 120, 14208, 2048, 51200)
    step = palm(model) * 3072 * 2048
    assert step > 2**63
    assert step == pytest.approx(float((6 * 291 * 10**9 + 12 * 120 * 14208 * 2048) * 3072 * 2048))


def test_utilisation_of_palm() -> None:
    # PaLM, appendix B: 540B parameters, 6144 chips of 275 TFLOP/s, 238.3 thousand tokens a second: 45.7% without attention
    assert utilisation(six_n(Counted(540e9, 118, 18432, 2048)), 238.3e3, 6144, 275e12) == pytest.approx(0.457, abs=0.001)
    with pytest.raises(ValueError, match="needs a device"):
        utilisation(1.0, 1.0, 0, 1e12)


def test_budget_of_chinchilla() -> None:
    # Hoffmann et al. 2022: 70B parameters on 1.4T tokens for Gopher's budget of 5.76e23 FLOPs
    params, tokens = chinchilla(5.76e23)
    assert params == pytest.approx(70e9, rel=0.02)
    assert tokens == pytest.approx(1.4e12, rel=0.02)


def test_hours_and_price_agree() -> None:
    per_token, share, peak = 6 * 7e9, 0.4, 1e15
    hours = device_hours(per_token, 1e6, share, peak)
    assert cost_per_million_tokens(share * peak / per_token, 2.5) == pytest.approx(2.5 * hours)


def test_every_convention_has_a_name_and_a_count() -> None:
    assert all(function(GPT3) > 5e11 for function in CONVENTIONS.values())

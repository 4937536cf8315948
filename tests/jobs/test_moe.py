"""The job moe: it trains as one process without any exchange would, and its runs carry experts, loads, matched exchanges."""

import math
from functools import partial

import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof.ranges import parse_range  # noqa: E402
from dtprof_sample_jobs import moe  # noqa: E402
from dtprof_sample_jobs.common.data import make_data  # noqa: E402
from dtprof_sample_jobs.common.flops import flops_per_token  # noqa: E402
from dtprof_sample_jobs.common.moe import Expert  # noqa: E402
from dtprof_sample_jobs.common.update import make_optimizer  # noqa: E402
from tests.jobs.one_process import losses_of  # noqa: E402

LAYERS, SEQ, BATCH, EXPERTS, TOP_K = 2, 16, 2, 4, 2
SMALL = f"--steps 3 --layers {LAYERS} --dim 32 --seq {SEQ} --vocabulary 64 --batch {BATCH} --experts {EXPERTS}".split()
TOKENS = SEQ * BATCH
# tokens of several ranks are added in another order than one process adds them
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 2e-5
LAYER = '[[layers]]\nname = "block"\nrepeat = 2\nforward_ms = 0.1\nbackward_ms = 0.2\ntensors = [4096]\n'


def options(*words):
    return moe.parser().parse_args([*SMALL, *words])


def dense(mixture, x):
    """Every expert on every token, token by token, times the weight that it has there: no order, no counts, no exchange."""
    routing, flat = mixture.routing, x.flatten(0, -2)
    p = mixture.router(flat).softmax(-1)
    chosen, sent = torch.zeros_like(p), torch.zeros_like(p)
    limit = math.inf if routing.capacity is None else math.ceil(routing.capacity * routing.top_k * len(p) / routing.experts)
    full = [0] * routing.experts
    for t, row in enumerate(p.tolist()):
        best = sorted(range(routing.experts), key=lambda e: -row[e])
        if routing.skew is not None:
            best.remove(routing.skew.expert)
            if t < round(routing.skew.share * len(p)):
                best.insert(0, routing.skew.expert)
        for e in best[: routing.top_k]:
            chosen[t, e] = 1
            sent[t, e] = full[e] < limit
            full[e] += 1
    weights = p * chosen / (p * chosen).sum(1, keepdim=True) * sent
    mixture.aux = routing.experts * (chosen.mean(0) / routing.top_k * p.mean(0)).sum()
    out = sum(weights[:, [e]] * mixture.experts[str(e)](flat) for e in range(routing.experts))
    return out.view_as(x)


def one_process(args, ranks):
    """Every rank's losses, step by step, and the gradients of their mean before the last optimizer step."""
    torch.manual_seed(args.seed)
    model = moe.Model(args)
    for mixture in model.mixtures:
        mixture.forward = partial(dense, mixture)
    optimizer = make_optimizer(model.parameters(), kind=args.optimizer)
    data = [make_data(args, rank, ranks) for rank in range(ranks)]
    losses, gradients = [[] for _ in data], {}
    for step in range(args.steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            loss = model(data[rank].batch(step))
            (loss / ranks).backward()
            losses[rank].append(loss.item())
        if args.clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
    return losses, gradients


def compare(run, scripts, folder, ranks, words, *, measured=False):
    """Run the job on ranks and in one process; losses must agree, and gradients to a part of each tensor's largest."""
    words = ["--optimizer", "sgd", *words]
    args = options(*words)
    file, losses = folder / "gradients", folder / "losses"
    own = ["--out", str(folder / "run"), "--losses", str(losses), *([] if measured else ["--no-dtprof"])]
    run(ranks, [str(scripts / "gradients.py"), "moe", str(file), *SMALL, *words, *own])
    expected, gradients = one_process(args, ranks)
    owners = dict.fromkeys(gradients, 0)
    for rank in range(ranks):
        assert losses_of(losses, rank) == pytest.approx(expected[rank], rel=LOSS_TOLERANCE)
        for name, found in torch.load(f"{file}.rank{rank}").items():
            owners[name] += 1
            wanted = gradients[name]
            assert (found - wanted).abs().max() <= GRADIENT_TOLERANCE * wanted.abs().max(), name
    copies = ranks // (args.ep or ranks)
    assert owners == {name: copies if ".experts." in name else ranks for name in gradients}


@pytest.fixture(scope="module")
def measured(run, scripts, tmp_path_factory):
    """One measured run for all quick tests."""
    folder = tmp_path_factory.mktemp("moe")
    words = ["--steps", "12", "--capture", "4:7", "--capacity-factor", "1.0"]
    compare(run, scripts, folder, 2, words, measured=True)
    return dtprof.open_run(folder / "run")


def loads(run, metric, ranks):
    """(step, layer, expert) -> sum over the ranks' rows."""
    found = {}
    for rank in ranks:
        table = run.table("metrics", rank)
        rows = table.take(table.is_("metric", metric))
        for step, layer, expert, value in zip(rows["step"], rows.text("layer"), rows["expert"], rows["value"], strict=True):
            key = int(step), layer, int(expert)
            found[key] = found.get(key, 0) + value
    return found


def test_expert_parallel_with_a_capacity_trains_as_one_process(measured):
    assert measured.manifest.job == "moe"
    assert measured.manifest.mesh == {"dp": 1, "ep": 2}
    assert ("ep", "ep", [0, 1]) in [(g["name"], g.get("axis"), g["ranks"]) for g in measured.manifest.groups]


def test_every_token_of_every_step_is_in_the_metrics(measured):
    computed, dropped = loads(measured, "moe_tokens", (0, 1)), loads(measured, "moe_dropped", (0, 1))
    keys = {(step, f"blocks.{layer}", e) for step in range(12) for layer in range(LAYERS) for e in range(EXPERTS)}
    assert set(computed) == set(dropped) == keys
    limit = 2 * math.ceil(TOKENS * TOP_K / EXPERTS)
    assert max(computed.values()) <= limit
    assert sum(dropped.values()) > 0
    for step in range(12):
        for layer in range(LAYERS):
            here = [(step, f"blocks.{layer}", e) for e in range(EXPERTS)]
            assert sum(computed[key] + dropped[key] for key in here) == 2 * TOKENS * TOP_K
    for rank in (0, 1):
        assert {e for _, _, e in loads(measured, "moe_tokens", (rank,))} == {2 * rank, 2 * rank + 1}
        aux = measured.table("metrics", rank)
        values = aux["value"][aux.is_("metric", "moe_aux_loss")]
        assert len(values) == 12 * LAYERS
        assert (values > 0.9).all()


def test_ranges_name_layer_and_expert(measured):
    for rank in (0, 1):
        assert len(measured.table("quality", rank)) == 0
        events = measured.table("events", rank)
        found = {}
        for name, step, layer, expert in zip(
            events.text("name"), events["step"], events.text("layer"), events["expert"], strict=True
        ):
            base = parse_range(name or "")[0]
            if base in ("expert", "router", "dispatch", "combine", "dispatch backward", "combine backward", "token counts"):
                found.setdefault(base, []).append((int(step), layer, int(expert)) if base == "expert" else (int(step), layer))
        layers = [(step, f"blocks.{n}") for step in (4, 5, 6) for n in range(LAYERS)]
        assert sorted(found.pop("expert")) == sorted((*at, 2 * rank + n) for at in layers for n in (0, 1))
        assert {base: sorted(set(at)) for base, at in found.items()} == dict.fromkeys(found, layers)
        assert len(found) == 6


def test_all_exchanges_are_matched_across_the_ranks(measured):
    table = measured.table("collectives")
    captured = table.take((table["step"] >= 4) & (table["step"] < 7))
    assert set(captured["n_present"].tolist()) == {2}
    assert set(captured.text("matched_by")) == {"seq"}
    # token counts, dispatch, combine, and the latter two once more in backward
    assert int(captured.is_("op", "all_to_all").sum()) == 3 * LAYERS * 5


MODES = [
    (1, ""),
    (2, ""),
    (2, "--experts-per-token 1 --capacity-factor 0.5"),
    (2, "--inject router_skew=3:0.6"),
    (2, "--clip 0.1"),
    (2, "--checkpointing full"),
    (2, "--checkpointing selective"),
    (3, "--experts 6 --inject slow_rank=1:1ms"),
    (4, ""),
    (4, "--ep 2 --capacity-factor 1.25"),
    (4, "--ep 2 --clip 0.1"),
    (2, "--ep 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "words"), MODES)
def test_it_trains_as_one_process(run, scripts, tmp_path, ranks, words):
    compare(run, scripts, tmp_path, ranks, words.split())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_emulated_layers_train_as_one_process(run, scripts, tmp_path, ranks):
    (tmp_path / "layers.toml").write_text(LAYER)
    compare(run, scripts, tmp_path, ranks, ["--emulate", str(tmp_path / "layers.toml"), "--batch", "16"])


@pytest.mark.slow
def test_a_skewed_router_sends_its_share_and_costs_its_time(run, tmp_path):
    share, us, batch = 0.75, 50, 32
    (tmp_path / "layers.toml").write_text(LAYER)
    words = ["--emulate", str(tmp_path / "layers.toml"), "--batch", str(batch), "--expert-us", str(us)]
    fault = ["--inject", f"router_skew=3:{share}", "--steps", "12", "--capture", "3:11", "--out", str(tmp_path / "run")]
    run(2, ["-m", "dtprof_sample_jobs.moe", *SMALL, *words, *fault])
    found = dtprof.open_run(tmp_path / "run")
    skewed = {key: n for key, n in loads(found, "moe_tokens", (0, 1)).items() if key[2] == 3}
    assert set(skewed.values()) == {2 * share * batch}
    events = found.table("events", 1)
    rows = events.take(events.is_("kind", "range") & (events["expert"] == 3))
    per_layer = [dur / 1e3 for name, dur in zip(rows.text("name"), rows["dur"].tolist(), strict=True) if "expert" in name]
    assert len(per_layer) == 8 * LAYERS
    assert sorted(per_layer)[len(per_layer) // 4] == pytest.approx(2 * share * batch * us, rel=0.1)


def test_flops_count_the_experts_that_a_token_goes_to():
    one, three = (flops_per_token(2, 32, 16, 64, experts) for experts in (1, 3))
    assert three - one == 2 * 6 * 2 * sum(p.numel() for p in Expert(32, 128, 0).parameters() if p.dim() == 2)


IMPOSSIBLE = [
    (4, "--ep 3", "--ep 3 does not divide 4 ranks"),
    (3, "", "cannot be shared evenly among 3 ranks"),
    (2, "--experts-per-token 5", "is more than --experts 4"),
    (2, "--capacity-factor 0", "lets nothing through"),
    (2, "--aux-weight -1", "would reward imbalance"),
    (2, "--expert-us -1", "no time per token"),
    (2, "--inject router_skew=4:0.5", "there is no expert 4"),
    (2, "--experts-per-token 4 --inject router_skew=1:0.5", "every token goes to all experts"),
]


@pytest.mark.parametrize(("ranks", "words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(ranks, words, message):
    with pytest.raises(InputError, match=message):
        moe.check(options(*words.split()), ranks)

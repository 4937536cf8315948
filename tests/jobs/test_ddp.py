"""The ddp job computes what one process computes on the same data: losses and gradients, in every mode."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from dtprof_sample_jobs import ddp  # noqa: E402
from dtprof_sample_jobs.common.data import make_data  # noqa: E402
from dtprof_sample_jobs.common.setup import make_model  # noqa: E402
from dtprof_sample_jobs.common.update import make_optimizer  # noqa: E402

SMALL = ["--steps", "5", "--layers", "2", "--dim", "64", "--seq", "32", "--batch", "2", "--vocabulary", "256", "--no-dtprof"]
QUICK = {
    "plain": [],
    "accumulate": ["--accumulate", "3"],
    "uneven": ["--uneven", "2"],
}
MODES = {
    **QUICK,
    "small_buckets": ["--bucket-cap-mb", "0.05"],
    "bucket_list": ["--bucket-cap-mb-list", "0.01,0.1"],
    "bucket_view": ["--gradient-as-bucket-view"],
    "static_graph": ["--static-graph", "--checkpointing", "full"],
    "find_unused": ["--find-unused-parameters"],
    "marked": ["--mark-buckets"],
    "clipped": ["--clip", "0.5"],
    "corpus": ["--data", "corpus"],
    "written_out": ["--attention", "math", "--checkpointing", "selective"],
    "emulated": ["--emulate", "head", "--lr", "0.01"],
    "uneven_accumulated": ["--uneven", "2", "--accumulate", "2"],
    "uneven_all_sent": ["--uneven", "2", "--compress", "topk", "--top-k", "1"],
    "all_sent": ["--compress", "topk", "--top-k", "1"],
    "fp16": ["--compress", "fp16"],
    "bf16": ["--compress", "bf16"],
    "bf16_compute": ["--precision", "bf16"],
}
# relative to the largest gradient: fp32 sums differ by order; fp16 and bf16 round to 11 and 8 bits
TOLERANCE = {"fp16": 2e-3, "bf16": 1.6e-2, "bf16_compute": 1.6e-2}
FP32 = 2e-5


def one_process(words, ranks):
    """(losses per rank, gradients per step) of one process that does the work of all ranks."""
    args = ddp.parser().parse_args(words)
    torch.manual_seed(args.seed)
    model = make_model(args, torch.device("cpu"))
    optimizer = make_optimizer(model.parameters(), rate=args.lr, emulated=bool(args.emulate))
    data = [make_data(args, rank, ranks) for rank in range(ranks)]
    losses, gradients = [[] for _ in range(ranks)], []
    for k in range(args.steps):
        present = [r for r in range(ranks) if r > 0 or k < args.steps - args.uneven]
        for rank in present:
            with ddp.autocast(args.precision, torch.device("cpu")):
                mine = [model(data[rank].batch(k * args.accumulate + m)) for m in range(args.accumulate)]
            loss = torch.stack(mine).mean()
            losses[rank].append(loss.item())
            (loss / ranks).backward()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients


def trained(start, end, scripts, folder, ranks, modes):
    plan = [{"name": name, "module": "dtprof_sample_jobs.ddp", "words": SMALL + words} for name, words in modes.items()]
    (folder / "plan.json").write_text(json.dumps(plan))
    done = end(start(ranks, [str(scripts / "jobs_in_turn.py"), str(folder / "plan.json")]), timeout=280)
    assert [rank.code for rank in done] == [0] * ranks, "\n".join(rank.output for rank in done)
    return folder


def compare(folder, ranks, mode):
    """The largest relative differences: of losses, of gradients."""
    losses, gradients = one_process(SMALL + MODES[mode], ranks)
    worst_loss = worst_gradient = 0.0
    for rank in range(ranks):
        found = [float.fromhex(x) for x in json.loads((folder / f"{mode}.losses.rank{rank}").read_text())]
        assert len(found) == len(losses[rank])
        worst_loss = max(worst_loss, *(abs(a - b) / b for a, b in zip(found, losses[rank], strict=True)))
        seen = torch.load(folder / f"{mode}.grads.rank{rank}")
        assert len(seen) == len(found)
        for a, b in zip(seen, gradients, strict=False):
            worst_gradient = max(worst_gradient, ((a - b).abs().max() / b.abs().max()).item())
    return worst_loss, worst_gradient


@pytest.fixture(scope="module")
def quick(start, end, scripts, tmp_path_factory):
    return trained(start, end, scripts, tmp_path_factory.mktemp("quick"), 2, QUICK)


@pytest.fixture(scope="module", params=[2, 3])
def every(request, start, end, scripts, tmp_path_factory):
    return request.param, trained(start, end, scripts, tmp_path_factory.mktemp(f"every{request.param}"), request.param, MODES)


@pytest.mark.parametrize("mode", QUICK)
def test_two_ranks_train_like_one_process(quick, mode):
    assert max(compare(quick, 2, mode)) < FP32


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ranks_train_like_one_process(every, mode):
    ranks, folder = every
    assert max(compare(folder, ranks, mode)) < TOLERANCE.get(mode, FP32)


def test_the_comparison_could_fail(quick):
    losses, gradients = one_process([*SMALL, "--seed", "1"], 2)
    seen = torch.load(quick / "plain.grads.rank0")
    assert abs(losses[0][0] - float.fromhex(json.loads((quick / "plain.losses.rank0").read_text())[0])) > 1e-3
    assert ((seen[0] - gradients[0]).abs().max() / gradients[0].abs().max()).item() > 0.1

"""The pieces of the sample jobs."""

import argparse

import pytest

torch = pytest.importorskip("torch")

from dtprof_sample_jobs import JOBS  # noqa: E402
from dtprof_sample_jobs.common.data import SyntheticTokens  # noqa: E402
from dtprof_sample_jobs.common.faults import fault, plant  # noqa: E402
from dtprof_sample_jobs.common.model import GPT  # noqa: E402


def gpt():
    torch.manual_seed(0)
    return GPT(vocabulary=64, layers=3, dim=32, heads=2, sequence=16)


@pytest.mark.parametrize(
    ("text", "rank", "ns"),
    [
        ("slow_rank=1:20ms", 1, 20_000_000),
        ("slow_rank=0:1.5ms", 0, 1_500_000),
        ("slow_rank=12:300us", 12, 300_000),
        ("slow_rank=2:1s", 2, 10**9),
    ],
)
def test_a_fault_is_read(text, rank, ns):
    planted = fault(text)
    assert (planted.kind, planted.rank, planted.ns, str(planted)) == ("slow_rank", rank, ns, text)


NOT_FAULTS = ["", "slow_rank", "slow_rank=1", "slow_rank=1:20", "slow_rank=a:20ms", "fast_rank=1:20ms", "slow_rank=1:-2ms"]


@pytest.mark.parametrize("text", NOT_FAULTS)
def test_what_is_no_fault_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write slow_rank"):
        fault(text)


def test_a_planted_slow_rank_is_an_operator_in_every_block_and_changes_no_number():
    tokens = SyntheticTokens(64, 2, 16, seed=0, rank=0).batch(0)
    healthy, slow, other = gpt(), gpt(), gpt()
    plant([fault("slow_rank=1:3ms")], slow.blocks, rank=1)
    plant([fault("slow_rank=1:3ms")], other.blocks, rank=0)
    activities = [torch.profiler.ProfilerActivity.CPU]
    losses, found = [], []
    for model in (healthy, slow, other):
        with torch.profiler.profile(activities=activities) as prof:
            loss = model(tokens)
            loss.backward()
        losses.append((loss.item(), model.head.weight.grad.sum().item()))
        found.append([e.cpu_time_total for e in prof.events() if e.name == "dtprof_lab::slow_compute"])
    assert losses[0] == losses[1] == losses[2]
    assert [len(times) for times in found] == [0, 3, 0]
    assert min(found[1]) >= 1000


def test_data_differs_by_rank_and_step_and_repeats_by_seed():
    def batch(rank, step, seed=0):
        return SyntheticTokens(64, 2, 16, seed=seed, rank=rank).batch(step)

    assert batch(0, 0).shape == (2, 17)
    assert torch.equal(batch(0, 0), batch(0, 0))
    assert not torch.equal(batch(0, 0), batch(1, 0))
    assert not torch.equal(batch(0, 0), batch(0, 1))
    assert not torch.equal(batch(0, 0), batch(0, 0, seed=1))


def test_the_model_learns():
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = SyntheticTokens(64, 4, 16, seed=0, rank=0).batch(0)
    losses = []
    for _ in range(30):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_every_job_is_one_short_file_that_says_how_to_start_it(scripts):
    folder = scripts.parents[2] / "sample_jobs" / "dtprof_sample_jobs"
    for name, module in JOBS.items():
        text = (folder / f"{module.rpartition('.')[2]}.py").read_text()
        assert len(text.splitlines()) <= 300
        assert f"dtprof job {name} " in text
        assert f"torchrun --nproc_per_node 2 -m {module} " in text

"""What the collector ``training`` hears of samplers, loaders and clipping; and that torch has its functions back afterwards."""

import pytest

from dtprof.protocols import Context

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from dtprof_collectors.training import TrainingCollector  # noqa: E402


@pytest.fixture
def heard(tmp_path):
    """A started collector and its facts; stopped afterwards."""
    made = TrainingCollector()
    context = Context(rank=0, world_size=1, folder=tmp_path, capture=(-1, -1), options={})
    made.start(context)
    yield made, context.status.facts
    made.stop()


def sampler(shuffle=True):
    return DistributedSampler(TensorDataset(torch.arange(8.0)), 2, 0, shuffle=shuffle)


def clipped(*, unscale, enabled=True, norm=None):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
    scaler.scale(parameter.sum()).backward()
    if unscale:
        scaler.unscale_(optimizer)
    if norm is None:
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    else:
        torch.nn.utils.clip_grads_with_norm_([parameter], 1.0, torch.tensor(norm))
    scaler.step(optimizer)
    scaler.update()


def test_epochs_are_noted_as_the_sampler_has_them(heard):
    _, facts = heard
    mine = sampler()
    for epoch in (0, 0, 3):
        mine.set_epoch(epoch)
        assert len(list(mine)) == 4
    list(sampler(shuffle=False))
    assert facts["samplers"] == [{"shuffle": True, "epochs": [0, 0, 3]}, {"shuffle": False, "epochs": [0]}]


def test_clipping_before_and_after_unscaling_is_told_apart(heard):
    _, facts = heard
    clipped(unscale=False)
    clipped(unscale=False)
    clipped(unscale=True)
    assert facts["clips"] == {"scaled": 2, "unscaled": 1}


def test_clipping_by_a_norm_over_several_groups_is_clipping_too(heard):
    _, facts = heard
    clipped(unscale=False, norm=2.0)
    clipped(unscale=True, norm=2.0)
    assert facts["clips"] == {"scaled": 1, "unscaled": 1}


def test_clipping_without_a_scaler_says_nothing(heard):
    _, facts = heard
    clipped(unscale=False, enabled=False)
    torch.nn.utils.clip_grad_norm_([torch.nn.Parameter(torch.ones(1))], 1.0)
    assert "clips" not in facts


def test_live_loaders_are_looked_at_once(heard):
    made, facts = heard
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, pin_memory=False)
    made.on_step(0)
    mine = {"num_workers": 0, "pin_memory": False, "prefetch_factor": None, "persistent_workers": False, "batch_size": 2}
    assert mine in facts["loaders"]
    del loader
    facts.clear()
    made.on_step(1)
    assert facts == {}


def test_torch_has_its_functions_back(tmp_path):
    before = (DistributedSampler.__iter__, torch.amp.GradScaler.scale, torch.amp.GradScaler.unscale_)
    made = TrainingCollector()
    made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(-1, -1), options={}))
    assert DistributedSampler.__iter__ is not before[0]
    made.stop()
    assert (DistributedSampler.__iter__, torch.amp.GradScaler.scale, torch.amp.GradScaler.unscale_) == before


def test_a_sampler_that_cannot_be_read_still_iterates(heard):
    _, facts = heard
    mine = sampler()
    mine.epoch = "first"
    with pytest.raises(TypeError):  # torch's own complaint, not ours
        list(mine)
    mine.epoch = 1
    assert len(list(mine)) == 4
    assert "samplers" not in facts or facts["samplers"][0]["epochs"] in ([], [1])


@pytest.mark.slow
def test_compiled_clipping_is_traced_as_without_us(heard):
    _, facts = heard
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.full((3,), 4.0)
    clip = torch.compile(lambda p: torch.nn.utils.clip_grad_norm_([p], 1.0), backend="eager", fullgraph=True)
    assert float(clip(parameter)) == pytest.approx(48**0.5)
    assert "clips" not in facts

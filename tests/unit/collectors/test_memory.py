"""The memory collector against bytes that are computed by hand."""

import gc
import threading
from itertools import pairwise
from mmap import mmap

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dtprof.jsonl import read_lines  # noqa: E402
from dtprof.protocols import Context  # noqa: E402
from dtprof_collectors import memory_modules, memory_state  # noqa: E402
from dtprof_collectors.memory import FILE, MemoryCollector, allocator_counters  # noqa: E402
from dtprof_collectors.memory_lines import Counters, State  # noqa: E402

# two linear layers, 6 to 4 to 3, float32
WEIGHTS = {"0": (6 * 4 + 4) * 4, "2": (4 * 3 + 3) * 4}


class Rows(dict):
    """(category, module) -> bytes of the modules that a test made."""

    def __init__(self, rows, names):
        super().__init__({(category, module): n for category, module, _, n in rows if module in names})


@pytest.fixture
def collector(tmp_path):
    made = MemoryCollector()
    made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(-1, -1), options={}))
    yield made
    made.stop()


def train(model, optimizer, collector, steps=2, size=6):
    for step in range(steps):
        model(torch.ones(2, size)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        collector.on_step(step)


def state(folder):
    rows, bad = read_lines(folder / FILE)
    assert bad == 0
    return [row for row in rows if row["type"] == "state"]


def test_linear_layers_under_adam(collector, tmp_path):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    train(model, torch.optim.Adam(model.parameters()), collector)
    collector.stop()
    (line,) = state(tmp_path)
    rows = Rows(line["rows"], WEIGHTS)
    for name, size in WEIGHTS.items():
        assert rows[("parameter", name)] == size
        assert rows[("gradient", name)] == size
        # two moments, and a step counter of four bytes for the weight and for the bias
        assert rows[("optimizer", name)] == 2 * size + 8


def test_plain_sgd_has_no_state_and_double_takes_twice(collector, tmp_path):
    model = nn.Sequential(nn.Linear(6, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
        optimizer.step()
        collector.on_step(step)
    collector.stop()
    rows = Rows(state(tmp_path)[0]["rows"], {"0"})
    assert rows == {("parameter", "0"): 2 * WEIGHTS["0"], ("gradient", "0"): 2 * WEIGHTS["0"]}


def test_two_optimizers_are_both_seen(collector, tmp_path):
    one, two = nn.Sequential(nn.Linear(6, 4)), nn.ModuleDict({"net": nn.Linear(4, 3)})
    first, second = torch.optim.Adam(one.parameters()), torch.optim.SGD(two.parameters(), 0.1, momentum=0.9)
    two["net"](one(torch.ones(2, 6))).sum().backward()
    first.step()
    second.step()
    collector.on_step(0)
    collector.stop()
    rows = Rows(state(tmp_path)[0]["rows"], {"0", "net"})
    assert rows[("optimizer", "0")] == 2 * WEIGHTS["0"] + 8
    assert rows[("optimizer", "net")] == WEIGHTS["2"]
    assert rows[("gradient", "net")] == WEIGHTS["2"]


def test_without_an_optimizer_only_parameters_are_told(collector, tmp_path):
    model = nn.Sequential(nn.Linear(6, 4))
    for step in range(22):
        collector.on_step(step)
    collector.stop()
    rows = Rows(state(tmp_path)[0]["rows"], {"0"})
    assert rows == {("parameter", "0"): WEIGHTS["0"]}
    assert any("no optimizer" in text for text in collector._status.missing)
    del model


def test_the_state_is_counted_again_behind_the_window(tmp_path):
    made = MemoryCollector()
    made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(3, 5), options={}))
    model = nn.Sequential(nn.Linear(6, 4))
    train(model, torch.optim.Adam(model.parameters()), made, steps=8)
    made.stop()
    assert [row["step"] for row in state(tmp_path)] == [0, 5]
    assert all(Rows(row["rows"], {"0"})[("gradient", "0")] == WEIGHTS["0"] for row in state(tmp_path))


def test_its_hook_is_gone_once_the_state_is_known(collector):
    from torch.optim import optimizer as module

    before = len(module._global_optimizer_pre_hooks)
    model = nn.Sequential(nn.Linear(6, 4))
    train(model, torch.optim.SGD(model.parameters(), 0.1), collector)
    assert len(module._global_optimizer_pre_hooks) == before - 1


def test_what_counting_gradients_raises_does_not_reach_the_job(collector, tmp_path, monkeypatch):
    def fails(_optimizer):
        raise AssertionError("planted")

    monkeypatch.setattr(memory_state, "gradients_of", fails)
    model = nn.Sequential(nn.Linear(6, 4))
    train(model, torch.optim.SGD(model.parameters(), 0.1), collector)
    collector.stop()
    assert Rows(state(tmp_path)[0]["rows"], {"0"}) == {("parameter", "0"): WEIGHTS["0"]}
    assert any("gradients" in text for text in collector._status.missing)


def test_resident_memory_is_read_every_step(collector, tmp_path):
    held = []
    for step in range(4):
        held.append(mmap(-1, 16 << 20))  # pages that the process has never had, unlike those of an allocator
        held[-1].write(b"1" * (16 << 20))
        collector.on_step(step)
    collector.stop()
    lines = [row for row in read_lines(tmp_path / FILE)[0] if row["type"] == "counters"]
    assert [row["step"] for row in lines] == [0, 1, 2, 3]
    for before, after in pairwise(lines):
        assert after["rss"] - before["rss"] >= 15 << 20
        assert after["rss_peak"] >= after["rss"] - (1 << 20)
    metrics = MemoryCollector().tables(tmp_path)["metrics"]
    assert metrics.is_("metric", "memory_rss").sum() == 4


# -- counting tensors


def tally(*tensors):
    found = memory_state.Tally()
    for tensor in tensors:
        found.add("parameter", "m", tensor)
    return sum(n for *_, n in found.rows())


def test_a_shared_tensor_counts_once():
    tensor = torch.zeros(10)
    assert tally(tensor, tensor) == 40
    assert tally(tensor, tensor.detach()) == 40
    assert tally(tensor[:5], tensor[5:]) == 40


def test_tensors_that_hold_nothing_count_nothing():
    given = torch.zeros(10)
    given.untyped_storage().resize_(0)
    assert tally(torch.zeros(10, device="meta"), torch.zeros(0), given) == 0


def test_sparse_tensors_are_values_and_indices():
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (1000,), check_invariants=True)
    assert tally(sparse) == 2 * 4 + 2 * 8


def test_a_wrapper_subclass_is_its_inner_tensors():
    from torch.testing._internal.two_tensor import TwoTensor

    assert tally(TwoTensor(torch.zeros(10), torch.zeros(10))) == 80


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("module.blocks.0", "blocks.0"),
        ("_orig_mod.module.a", "a"),
        ("layers._fsdp_wrapped_module.1", "layers.1"),
        ("layers.module", "layers.module"),
        ("", ""),
    ],
)
def test_paths_are_those_of_the_author(name, path):
    assert memory_state.path_of(name) == path


def test_a_module_that_was_never_initialised_does_no_harm():
    class Broken(nn.Module):
        def __init__(self):
            pass

    broken = Broken.__new__(Broken)
    (found,) = memory_state.living(("torch.nn", "Module"))
    assert any(m is broken for m in found)
    assert all(m is not broken for m in memory_state.roots(found))


def test_looking_for_modules_touches_no_object():
    class Trap:
        @property
        def __class__(self):
            raise AssertionError("touched")

    trap = [Trap()]
    memory_state.living(("torch.nn", "Module"))
    del trap


# -- hooks on modules


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a(x))


def growth_of(model, readings, *, passes=1, **context):
    """Growth by module when the allocator's counter reads so, call after call."""
    values = iter(readings)
    hooks = memory_modules.Growth(lambda: next(values))
    for path, module in [("Tree", model), ("a", model.a), ("b", model.b)]:
        hooks._handles.append(module.register_forward_pre_hook(hooks._before(path)))
        hooks._handles.append(module.register_forward_hook(hooks._after(path), always_call=True))
    for _ in range(passes):
        model(torch.ones(1, 2))
    hooks.remove()
    assert hooks.guard.failures == []
    return hooks.largest


def test_growth_is_a_module_s_own():
    # before Tree, before a, after a, before b, after b, after Tree
    assert growth_of(Tree(), [100, 110, 140, 141, 161, 165]) == {"Tree": 15, "a": 30, "b": 20}


def test_of_several_passes_the_largest_counts():
    readings = [0, 0, 30, 30, 50, 50, *[100, 100, 107, 107, 140, 140]]
    assert growth_of(Tree(), readings, passes=2) == {"Tree": 0, "a": 30, "b": 33}


def test_passes_without_gradients_are_not_counted():
    with torch.no_grad():
        assert growth_of(Tree(), range(0, 60, 10)) == {}


def test_a_forward_pass_that_raises_leaves_the_next_one_right():
    model = Tree()
    failing = model.b.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(ValueError("planted")))
    values = iter([0, 0, 30, 30, 30, 30, 100, 100, 107, 107, 140, 140])
    hooks = memory_modules.Growth(lambda: next(values))
    for path, module in [("Tree", model), ("a", model.a), ("b", model.b)]:
        hooks._handles.append(module.register_forward_pre_hook(hooks._before(path)))
        hooks._handles.append(module.register_forward_hook(hooks._after(path), always_call=True))
    with pytest.raises(ValueError, match="planted"):
        model(torch.ones(1, 2))
    failing.remove()
    model(torch.ones(1, 2))
    hooks.remove()
    assert hooks.guard.failures == []


def test_a_reading_that_fails_does_not_reach_the_job():
    def read():
        raise RuntimeError("planted")

    hooks = memory_modules.Growth(read)
    model = Tree()
    hooks.install()
    assert model(torch.ones(1, 2)).shape == (1, 2)
    hooks.remove()
    assert len(hooks.guard.failures) == 1
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_modules_of_a_compiled_job_are_not_hooked(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_modules, "compiled", lambda: True)
    model = Tree()
    made = MemoryCollector()
    made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(0, 2), options={"modules": True}))
    assert not model._forward_hooks
    assert any("torch.compile" in text for text in made._status.missing)
    made.stop()


def test_losses_are_the_same_with_hooks_in_the_window(tmp_path):
    def losses(collector):
        torch.manual_seed(3)
        model = Tree()
        optimizer = torch.optim.Adam(model.parameters())
        found = []
        for step in range(6):
            loss = model(torch.randn(4, 2)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            if collector:
                collector.on_step(step)
        return found

    made = MemoryCollector()
    made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(2, 4), options={"modules": True}))
    measured = losses(made)
    made.stop()
    assert measured == losses(None)
    assert not any(m._forward_hooks for m in gc.get_objects() if type(m) is Tree)


# -- the CUDA allocator's counters


def test_counters_come_from_the_nested_statistics():
    stats = {
        "allocated_bytes": {"all": {"current": 5, "peak": 9}, "small_pool": {"current": 1}},
        "reserved_bytes": {"all": {"current": 20}},
        "active_bytes": {"all": {"current": 6}},
        "inactive_split_bytes": {"all": {"current": 3}},
        "num_alloc_retries": 1,
        "num_ooms": 2,
    }
    line = Counters(step=0, ts=0)
    allocator_counters(line, stats, 1)
    assert (line.allocated, line.allocated_peak, line.reserved, line.active, line.inactive_split) == (5, 9, 20, 6, 3)
    assert (line.device, line.retries, line.ooms) == (1, 1, 2)


def test_counters_of_another_torch_may_lack_some():
    line = Counters(step=0, ts=0)
    allocator_counters(line, {"allocated_bytes": {}}, 0)
    assert line.allocated is None


def test_it_may_be_started_in_another_thread(tmp_path):
    made = MemoryCollector()

    def go():
        made.start(Context(rank=0, world_size=1, folder=tmp_path, capture=(1, 2), options={"modules": True}))
        for step in range(4):
            made.on_step(step)
        made.stop()

    thread = threading.Thread(target=go)
    thread.start()
    thread.join(60)
    assert len([r for r in read_lines(tmp_path / FILE)[0] if r["type"] == "counters"]) == 4


def test_lines_have_their_kinds():
    assert State(step=1, ts=2, rows=[("parameter", None, -1, 3)]).rows[0][1] is None

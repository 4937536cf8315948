"""The pieces of the sample jobs."""

import json
import re
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import JOBS  # noqa: E402
from dtprof_sample_jobs.common import delay  # noqa: E402
from dtprof_sample_jobs.common.data import CorpusTokens, SyntheticTokens  # noqa: E402
from dtprof_sample_jobs.common.emulate import Emulated, emulation, total_bytes  # noqa: E402
from dtprof_sample_jobs.common.faults import fault, plant  # noqa: E402
from dtprof_sample_jobs.common.flops import flops_per_token, mfu  # noqa: E402
from dtprof_sample_jobs.common.mesh import Mesh  # noqa: E402
from dtprof_sample_jobs.common.model import GPT  # noqa: E402
from dtprof_sample_jobs.common.options import common_parser  # noqa: E402
from dtprof_sample_jobs.common.recompute import recompute  # noqa: E402
from dtprof_sample_jobs.common.setup import World, autocast, train  # noqa: E402
from dtprof_sample_jobs.common.update import make_optimizer, update  # noqa: E402


def gpt(attention="sdpa"):
    torch.manual_seed(0)
    return GPT(64, layers=3, dim=32, heads=2, sequence=16, attention=attention)


def tokens():
    return SyntheticTokens(64, 2, 16, seed=0, rank=0).batch(0)


def trace(model):
    """(loss, all gradients, counts of operators by name) of one forward and backward pass."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        loss = model(tokens())
        loss.backward()
    names = [event.name for event in prof.events()]
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()]), names.count


def test_a_planted_slow_rank_is_an_operator_in_every_block_and_changes_no_number():
    healthy, slow, other = gpt(), gpt(), gpt()
    plant([fault("slow_rank=1:3ms")], slow.blocks, rank=1)
    plant([fault("slow_rank=1:3ms")], other.blocks, rank=0)
    activities = [torch.profiler.ProfilerActivity.CPU]
    losses, found = [], []
    for model in (healthy, slow, other):
        with torch.profiler.profile(activities=activities) as prof:
            loss = model(tokens())
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
    losses = []
    for _ in range(30):
        loss = model(tokens())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_every_epoch_of_the_corpus_has_its_own_order_and_ranks_share_it_out():
    ranks = [CorpusTokens(4, 64, seed=0, rank=r, ranks=2) for r in (0, 1)]
    per_epoch = ranks[0].per_epoch
    epochs = [
        [[tuple(row) for k in range(per_epoch) for row in r.batch(e * per_epoch + k).tolist()] for r in ranks] for e in (0, 1)
    ]
    for mine, others in epochs:
        assert not set(mine) & set(others)
    assert epochs[0][0] != epochs[1][0]
    assert ranks[0].batch(0).shape == (4, 65)
    assert [tuple(row) for row in ranks[0].batch(0).tolist()] == epochs[0][0][:4]
    with pytest.raises(InputError, match="more than the corpus has"):
        CorpusTokens(10_000, 64, seed=0, rank=0, ranks=2)


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputation_changes_no_number_and_selective_computes_less_again(mode):
    plain, again = gpt(), gpt()
    recompute(again.blocks, mode)
    flops, losses = [], []
    for model in (plain, again):
        with FlopCounterMode(display=False) as counter:
            loss = model(tokens())
            loss.backward()
        flops.append(counter.get_total_flops())
        losses.append(loss.item())
    assert losses[0] == losses[1]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), again.parameters(), strict=True))
    assert flops[1] == flops[0] if mode == "selective" else flops[1] > 1.2 * flops[0]
    assert again.blocks[0].forward != plain.blocks[0].forward


def test_a_planted_delay_is_not_repeated_by_recomputation():
    model = gpt()
    recompute(model.blocks, "full")
    plant([fault("slow_rank=0:3us")], model.blocks, rank=0)
    assert trace(model)[2]("dtprof_lab::slow_compute") == 3


def test_a_slow_backward_is_an_operator_of_the_backward_pass():
    healthy, slow = gpt(), gpt()
    plant([fault("slow_backward=0:3us")], slow.blocks, rank=0)
    loss, gradients, _ = trace(healthy)
    with torch.no_grad():
        slow(tokens())
    slow_loss, slow_gradients, count = trace(slow)
    assert count("dtprof_lab::slow_compute") == 3
    assert (slow_loss, torch.equal(slow_gradients, gradients)) == (loss, True)


def test_attention_written_out_is_the_same_attention():
    (loss, gradients, _), (other, others, count) = trace(gpt()), trace(gpt("math"))
    assert other == pytest.approx(loss, rel=1e-6)
    assert torch.allclose(gradients, others, atol=1e-6)
    assert count("aten::softmax") == 3


def test_bf16_computes_in_bf16_and_keeps_fp32_weights():
    model, cpu = gpt(), torch.device("cpu")
    with autocast("fp32", cpu):
        exact = model(tokens())
    with autocast("bf16", cpu):
        rounded = model(tokens())
    assert exact.item() != rounded.item()
    assert rounded.item() == pytest.approx(exact.item(), rel=1e-2)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_gradients_are_unscaled_before_they_are_clipped():
    def weights(scale, clip):
        model = gpt()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
        loss = model(tokens())
        (scaler.scale(loss) if scaler else loss).backward()
        norm = update(make_optimizer(model.parameters(), kind="sgd"), model.parameters(), clip, scaler)
        assert all(p.grad is None for p in model.parameters())
        return norm, torch.cat([p.detach().flatten() for p in model.parameters()])

    norm, plain = weights(None, 0.01)
    scaled_norm, scaled = weights(1024.0, 0.01)
    assert norm.item() == pytest.approx(scaled_norm.item(), rel=1e-5)
    assert torch.allclose(plain, scaled, atol=1e-7)
    assert weights(None, None)[0] is None
    assert not torch.allclose(plain, weights(None, None)[1], atol=1e-7)


def test_an_emulated_model_has_the_bytes_and_the_operators_of_its_file(tmp_path):
    path = tmp_path / "layers.toml"
    path.write_text(
        "width_bytes = 64\n[[layers]]\nforward_ms = 0.5\nbackward_ms = 1\nweight_share = 0.25\ntensors = [4096, 8]\n"
        '[[layers]]\nname = "b"\nrepeat = 2\nforward_ms = 0\nbackward_ms = 0\ntensors = [400]\n'
    )
    found = emulation(str(path))
    assert [layer.name for layer in found.layers] == ["layer", "b0", "b1"]
    assert (found.layers[0].forward_ns, found.layers[0].input_ns, found.layers[0].weight_ns) == (500_000, 750_000, 250_000)
    assert (total_bytes(found), found.width, str(found)) == (4096 + 8 + 800, 16, str(path))
    model = Emulated(found, 64)
    assert [p.numel() * 4 for p in model.parameters()] == [4096, 8, 400, 400]
    assert model.embed(tokens()[:, :-1]).shape == (2, 16)
    _, gradients, count = trace(model)
    assert [count(f"dtprof_lab::{name}") for name in ("forward", "backward_input", "backward_weight")] == [3, 3, 3]
    assert gradients.count_nonzero() == 4


def test_an_emulated_gradient_is_that_of_the_loss():
    model = Emulated(emulation("head"), 64).double()
    for layer in model.blocks:
        layer.forward = lambda x, tensors=layer.tensors: x + torch.stack([t.flatten()[0] for t in tensors]).sum() * 0.01
    model(tokens()).backward()
    wanted = [p.grad.flatten()[0].item() for p in model.parameters()]
    for layer in model.blocks:
        del layer.forward
    model.zero_grad()
    model(tokens()).backward()
    assert [p.grad.flatten()[0].item() for p in model.parameters()] == pytest.approx(wanted, rel=1e-6)
    assert min(map(abs, wanted)) > 0


def test_the_two_gradients_of_an_emulated_layer_can_be_had_apart():
    model = Emulated(emulation("head"), 64)
    x = torch.ones(1, model.width, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        torch.autograd.grad(model.blocks[0](x).sum(), x)
    names = [event.name for event in prof.events()]
    assert ("dtprof_lab::backward_input" in names, "dtprof_lab::backward_weight" in names) == (True, False)


def test_full_checkpointing_emulates_the_forward_pass_again_and_selective_does_not(monkeypatch):
    waited, gradients = {}, {}
    for mode in ("none", "full", "selective"):
        monkeypatch.setattr(delay, "wait", waited.setdefault(mode, []).append)
        torch.manual_seed(0)
        model = Emulated(emulation("head"), 64)
        recompute(model.blocks, mode)
        _, gradients[mode], _ = trace(model)
        waited[mode] = len(waited[mode]) / len(model.blocks)
    assert waited == {"none": 3, "full": 4, "selective": 3}, "forward, input, weights; and forward again"
    assert torch.equal(gradients["full"], gradients["none"])
    assert torch.equal(gradients["selective"], gradients["none"])


NOT_EMULATIONS = [
    ("x = ", "Invalid value"),
    ("x = 1", "'layers' is missing"),
    ("[[layers]]\nforward_ms = 1", "'backward_ms' is missing"),
    ("[[layers]]\nforward_ms = 1\nbackward_ms = 1\ntensors = []", "tensors have"),
    ("[[layers]]\nforward_ms = -1\nbackward_ms = 1\ntensors = [4]", "times lie in 0 to an hour"),
    ("[[layers]]\nforward_ms = inf\nbackward_ms = 1\ntensors = [4]", "cannot convert float infinity"),
    ("[[layers]]\nforward_ms = 1\nbackward_ms = 1\ntensors = [4]\nrepeat = 1.5", "cannot be interpreted as an integer"),
    ("[[layers]]\nforward = 1", "no key 'forward'"),
]


@pytest.mark.parametrize(("text", "why"), NOT_EMULATIONS)
def test_what_is_no_emulation_is_refused(tmp_path, text, why):
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(InputError, match=why):
        emulation(str(tmp_path / "x.toml"))


def test_an_emulation_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="one of head, small, uniform"):
        emulation("nothing")


def test_a_mesh_gives_each_rank_its_place_and_each_axis_its_groups():
    mesh = Mesh({"pp": 2, "dp": 2, "tp": 1})
    assert mesh.coordinates()[1] == {"pp": 0, "dp": 1, "tp": 0}
    assert mesh.coordinates()[2] == {"pp": 1, "dp": 0, "tp": 0}
    assert [(g["axis"], g["ranks"]) for g in mesh.groups()] == [
        ("pp", [0, 2]), ("pp", [1, 3]), ("dp", [0, 1]), ("dp", [2, 3]),
    ]  # fmt: skip
    mesh.check(4)
    for ranks in (3, 8):
        with pytest.raises(InputError, match=f"does not fit {ranks} ranks"):
            mesh.check(ranks)


def test_flops_of_a_token_are_those_of_the_papers():
    layers, dim, sequence, vocabulary = 96, 12288, 2048, 51200
    # Megatron-LM 2021, equation 3 (per batch and without recomputation: 72 instead of 96)
    megatron = 72 * layers * dim**2 * (1 + sequence / (6 * dim) + vocabulary / (12 * layers * dim))
    assert flops_per_token(layers, dim, sequence, vocabulary) == pytest.approx(megatron, rel=1e-12)
    assert mfu(1000, 10**12, 4, "NVIDIA H200", "bf16") == pytest.approx(1e15 / (4 * 989.4e12))
    assert mfu(1000, 10**12, 4, "cpu: something", "bf16") is None


@pytest.mark.parametrize(
    "words", [["--steps", "0"], ["--batch", "-1"], ["--precision", "fp4"], ["--emulate", "no.toml"], ["--nonsense"]]
)
def test_a_rank_refuses_with_one_line_and_code_3(words, capsys):
    with pytest.raises(SystemExit) as end:
        common_parser("x", "A job.").parse_args(words)
    assert end.value.code == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


REFUSED = [
    "ddp --inject slow_rank=2:20ms",
    "ddp --inject stage_imbalance=0:20ms",
    "ddp --inject slow_link=0:1gbit",
    "ddp --inject slow_rank=1:2000000s",
    "ddp --emulate nothing.toml",
    "ddp --batch 0",
    "ddp --uneven 99",
    "ddp --lr 0",
    "ddp --lr nan",
    "ddp --clip inf",
    "ddp --bucket-cap-mb nan",
    "ddp --bucket-cap-mb-list 1,inf",
    "ddp --seed -1",
    "ddp --capture 5",
    "ddp --capture 8:5",
    "ddp --out /dev/null",
    "ddp --out /dev/null/run",
    "ddp --out=",
    "ddp --losses nowhere/losses",
    "ddp --data corpus --batch 100000",
    "ddp --lab=",
    "ddp --lab hosts=3",
    "ddp extra",
    "fsdp --strategy hsdp",
    "fsdp --strategy hsdp --replicas 1",
    "fsdp --load nowhere",
    "fsdp --load . --state sharded",
    "fsdp --save /dev/null",
    "fsdp --inject tiny_buckets=all:1",
    "pipeline --microbatches 1",
    "pipeline --schedule zbv --layers 3",
    "pipeline --inject few_microbatches=all:1.5",
    "moe --experts 7",
    "moe --inject router_skew=8:0.5",
    "moe --inject router_skew=3:1.5",
    "moe --expert-us nan",
    "parameter_server --staleness -1",
    "elastic --checkpoint-every 0",
    "elastic --checkpoints /dev/null",
    "elastic --inject kill=2:5",
    "elastic --inject checkpoint_gil=0:5ms",
    "elastic --lab rate=1gbit",
    "collectives --link-size 1K,2K",
    "collectives --groups pairs",
    "collectives --out /dev/null",
]


def test_the_command_refuses_before_any_process_starts(capsys, monkeypatch, tmp_path):
    from dtprof.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    for line in REFUSED:
        name, *words = line.split()
        assert main(["job", name, "--ranks", "2", *words]) == 3, line
        said = capsys.readouterr()
        assert (said.out, len(said.err.splitlines())) == ("", 1), line
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_torchrun_started_refuses_too(tmp_path):
    words = [sys.executable, "-m", "dtprof_sample_jobs.ddp", "--uneven", "99"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)


def test_the_list_can_be_read_by_a_machine(capsys):
    from dtprof.cli import main

    assert main(["job", "--list", "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["name"] for job in jobs] == list(JOBS)
    for job in jobs:
        assert job["summary"]
        assert {"option", "help", "default"} == set(job["options"][0])


def test_every_job_is_one_short_file_that_says_how_to_start_it(scripts):
    folder = scripts.parents[2] / "sample_jobs" / "dtprof_sample_jobs"
    for name, module in JOBS.items():
        text = (folder / f"{module.rpartition('.')[2]}.py").read_text()
        assert len(text.splitlines()) <= 300
        assert f"dtprof job {name} " in text
        assert re.search(rf"torchrun --nproc_per_node \d -m {module} ", text)


def test_losses_on_the_host_are_kept_as_numbers(tmp_path):
    """A small tensor that lives on from every step splits the heap, and resident memory grows by much more than it holds."""
    words = ["--steps", "5", "--capture", "none", "--no-dtprof", "--losses", str(tmp_path / "losses"), "--out", str(tmp_path)]
    args = common_parser("made", "").parse_args(words)
    made = []

    def step(k):
        loss = torch.tensor(1.0 / (k + 3))
        assert [kept for kept in made[:-1] if kept() is not None] == []
        made.append(weakref.ref(loss.untyped_storage()))
        return loss

    train("made", args, World(0, 1, torch.device("cpu")), step)
    written = json.loads((tmp_path / "losses.rank0").read_text())
    assert written == [torch.tensor(1.0 / (k + 3)).item().hex() for k in range(5)]

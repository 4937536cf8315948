"""The job fsdp: every strategy trains as one process would, its checkpoints come back, and its runs carry the tags."""

import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import fsdp  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SMALL = ["--steps", "4", "--layers", "2", "--dim", "32", "--seq", "16", "--vocabulary", "64"]
# a sum over ranks is taken in another order than one process takes it
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-5


def options(*words):
    return fsdp.parser().parse_args([*SMALL, *words])


def compare(run, scripts, tmp_path, ranks, words, *, measured=False):
    """Run the job on ranks and in one process; losses must agree, and gradients to a part of each tensor's largest."""
    args = options(*words)
    file, losses = tmp_path / "gradients", tmp_path / "losses"
    own = ["--out", str(tmp_path / "run"), "--losses", str(losses), *([] if measured else ["--no-dtprof"])]
    run(ranks, [str(scripts / "gradients.py"), "fsdp", str(file), *SMALL, *words, *own])
    expected, gradients = one_process(args, ranks=ranks, micro=args.accumulate)
    for rank in range(ranks):
        assert losses_of(losses, rank) == pytest.approx(expected[rank], rel=LOSS_TOLERANCE)
        found = torch.load(f"{file}.rank{rank}")
        assert set(found) == set(gradients)
        for name, grad in gradients.items():
            assert found[name].shape == grad.shape
            assert (found[name] - grad).abs().max() <= GRADIENT_TOLERANCE * grad.abs().max(), name


@pytest.fixture(scope="module")
def zero3(run, scripts, tmp_path_factory):
    """One measured run for all quick tests."""
    folder = tmp_path_factory.mktemp("fsdp")
    words = ["--steps", "12", "--capture", "4:7", "--accumulate", "2", "--strategy", "zero3"]
    compare(run, scripts, folder, 2, words, measured=True)
    return dtprof.open_run(folder / "run")


def test_zero3_trains_as_one_process(zero3):
    assert zero3.manifest.job == "fsdp"


MODES = [
    "zero1",
    "zero2",
    "fsdp1",
    "zero1 --accumulate 2",
    "zero2 --accumulate 3",
    "fsdp1 --accumulate 2",
    "zero3 --forward-prefetch 1 --backward-prefetch 1",
    "fsdp1 --forward-prefetch 1 --backward-prefetch 1",
    "zero3 --async-gathers --forward-prefetch 1 --accumulate 2",
    "zero3 --wrap 2 --async-gathers",
    "zero3 --offload",
    "zero3 --checkpointing full",
    "zero2 --checkpointing selective",
    "zero1 --emulate head",
    "zero3 --emulate head --checkpointing full",
    "fsdp1 --emulate head --checkpointing selective",
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_strategy_trains_as_one_process(run, scripts, tmp_path, mode):
    compare(run, scripts, tmp_path, 2, ["--strategy", *mode.split()])


@pytest.mark.slow
def test_hsdp_trains_as_one_process(run, scripts, tmp_path):
    compare(run, scripts, tmp_path, 4, ["--strategy", "hsdp"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "zero3", "fsdp1"])
def test_clipping_is_by_the_norm_of_all_ranks(run, scripts, tmp_path, strategy):
    compare(run, scripts, tmp_path, 2, ["--strategy", strategy, "--clip", "0.1"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp1"])
def test_mixed_precision_stays_near_fp32(run, scripts, tmp_path, strategy):
    args = options()
    words = ["--strategy", strategy, "--precision", "bf16", "--losses", str(tmp_path / "losses"), "--no-dtprof"]
    run(2, ["-m", "dtprof_sample_jobs.fsdp", *SMALL, *words])
    expected, _ = one_process(args, ranks=2, micro=1)
    for rank in range(2):
        found = losses_of(tmp_path / "losses", rank)
        assert found == pytest.approx(expected[rank], rel=0.01)
        assert found != pytest.approx(expected[rank], rel=1e-7)


FORMS = [(strategy, form) for strategy, forms in fsdp.STATES.items() for form in forms if strategy != "hsdp"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "form"), FORMS)
def test_every_form_of_checkpoint_goes_on_where_it_ended(run, tmp_path, strategy, form):
    resume(run, tmp_path, strategy, form)


def resume(run, tmp_path, strategy, form):
    """Four steps at once, and two and two with a checkpoint between: the same losses, bit for bit."""
    job = ["-m", "dtprof_sample_jobs.fsdp", *SMALL, "--no-dtprof", "--strategy", strategy, "--state", form]
    saved = str(tmp_path / "saved")
    run(2, [*job, "--losses", str(tmp_path / "whole")])
    run(2, [*job, "--steps", "2", "--losses", str(tmp_path / "first"), "--save", saved])
    run(2, [*job, "--steps", "2", "--losses", str(tmp_path / "second"), "--load", saved])
    for rank in range(2):
        parts = [losses_of(tmp_path / name, rank) for name in ("first", "second")]
        assert parts[0] + parts[1] == losses_of(tmp_path / "whole", rank)
        assert len(set(parts[0] + parts[1])) == 4


def test_a_run_has_mesh_groups_and_tags(zero3):
    assert zero3.manifest.mesh == {"shard": 2}
    assert zero3.manifest.coordinates == {"0": {"shard": 0}, "1": {"shard": 1}}
    assert [group["ranks"] for group in zero3.manifest.groups if group.get("axis") == "shard"] == [[0, 1]]
    for rank in range(2):
        events = zero3.table("events", rank)
        layers, phases = events.text("layer"), events.text("phase")
        seen = {(int(s), p, int(m), y) for s, p, m, y in zip(events["step"], phases, events["microbatch"], layers, strict=True)}
        for step in (4, 5, 6):
            for phase in ("forward", "backward"):
                for microbatch in (0, 1):
                    assert {(step, phase, microbatch, f"blocks.{n}") for n in (0, 1)} <= seen
            assert any(s == step and p == "optimizer" for s, p, _, _ in seen)


def test_a_run_has_no_quality_row_of_our_own_making(zero3):
    assert [zero3.table("quality", rank).row(n) for rank in range(2) for n in range(len(zero3.table("quality", rank)))] == []


IMPOSSIBLE = [
    (2, "--strategy hsdp", "does not fit 2 ranks"),
    (5, "--strategy hsdp", "a mesh of replicate 2 x shard 2 does not fit 5 ranks"),
    (2, "--save x --state local", "zero3 has no local checkpoint"),
    (2, "--strategy zero1 --load x --state sharded", "zero1 has no sharded checkpoint"),
    (2, "--strategy zero1 --offload", "zero1 cannot offload"),
    (2, "--strategy fsdp1 --wrap 2", "fsdp1 has neither --wrap nor --async-gathers"),
    (2, "--strategy fsdp1 --offload", "fsdp1 cannot offload without a GPU"),
    (2, "--backward-prefetch -1", "must not be negative"),
    (4, "--strategy hsdp --replicas 1", "hsdp with 1 copy is zero3"),
    (2, "--load nowhere", "has no full.pt"),
]


@pytest.mark.parametrize(("ranks", "words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(ranks, words, message):
    with pytest.raises(InputError, match=message):
        fsdp.check(options(*words.split()), ranks)


def test_hsdp_fits_four_ranks():
    args = options("--strategy", "hsdp")
    fsdp.check(args, 4)
    assert fsdp.mesh_of(args, 4).axes == {"replicate": 2, "shard": 2}

"""The job pipeline: every schedule trains as one process would, and its runs carry stage, micro-batch and layer."""

import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402
from dtprof.errors import InputError  # noqa: E402
from dtprof_sample_jobs import pipeline  # noqa: E402
from tests.jobs.one_process import losses_of, one_process  # noqa: E402

SIZE = {"steps": 3, "layers": 4, "dim": 32, "seq": 16, "vocabulary": 64, "batch": 2, "microbatches": 4}
SMALL = [word for name, n in SIZE.items() for word in (f"--{name}", str(n))]
# micro-batches are added in another order than one process adds them
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 2e-5, 1e-5
PARTED = ("zerobubble", "zbv", "dualpipev")


def options(*words):
    return pipeline.parser().parse_args([*SMALL, *words])


def compare(run, scripts, folder, ranks, words, *, measured=False):
    """Run the job on ranks and in one process; losses must agree, and gradients to a part of each tensor's largest."""
    args = options(*words)
    file, losses = folder / "gradients", folder / "losses"
    own = ["--out", str(folder / "run"), "--losses", str(losses), *([] if measured else ["--no-dtprof"])]
    run(ranks, [str(scripts / "gradients.py"), "pipeline", str(file), *SMALL, *words, *own])
    (expected,), gradients = one_process(args, ranks=1, micro=pipeline.microbatches_of(args))
    stages = pipeline.stages_of(args.schedule, ranks)
    found = {}
    for rank in range(ranks):
        last = stages - 1 in pipeline.stages_on(args.schedule, rank, ranks)
        assert losses_of(losses, rank) == (pytest.approx(expected, rel=LOSS_TOLERANCE) if last else [])
        mine = torch.load(f"{file}.rank{rank}")
        assert mine and not set(mine) & set(found)
        found |= mine
    assert set(found) == set(gradients)
    for name, grad in gradients.items():
        assert (found[name] - grad).abs().max() <= GRADIENT_TOLERANCE * grad.abs().max(), name


@pytest.fixture(scope="module")
def zerobubble(run, scripts, tmp_path_factory):
    """One measured run for all quick tests."""
    folder = tmp_path_factory.mktemp("pipeline")
    compare(run, scripts, folder, 2, ["--schedule", "zerobubble", "--steps", "12", "--capture", "4:7"], measured=True)
    return dtprof.open_run(folder / "run")


def test_zero_bubble_trains_as_one_process(zerobubble):
    assert zerobubble.manifest.job == "pipeline"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["interleaved", "zerobubble", "zbv", "dualpipev"])
def test_two_stages_on_one_rank_train_as_one_process(run, scripts, tmp_path, schedule):
    compare(run, scripts, tmp_path, 1, ["--schedule", schedule])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_every_schedule_trains_as_one_process_on_two_ranks(run, scripts, tmp_path, schedule):
    compare(run, scripts, tmp_path, 2, ["--schedule", schedule])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_every_schedule_trains_as_one_process_on_four_ranks(run, scripts, tmp_path, schedule):
    compare(run, scripts, tmp_path, 4, ["--schedule", schedule, "--layers", "8", "--microbatches", "8"])


MODES = [
    "--schedule 1f1b --clip 0.1",
    "--schedule zbv --clip 0.1",
    "--schedule gpipe --checkpointing full",
    "--schedule interleaved --checkpointing selective --checkpoint-stages 0,2",
    "--schedule 1f1b --layers 5 --inject few_microbatches=all:2",
    "--schedule gpipe --inject stage_imbalance=1:2ms",
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_options_and_faults_change_no_number(run, scripts, tmp_path, mode):
    compare(run, scripts, tmp_path, 2, mode.split())


def passes(run, rank):
    """(range, step, stage, micro-batch) -> rows, for the passes of a rank."""
    events = run.table("events", rank)
    found = {}
    for row, name in enumerate(events.text("name")):
        base = (name or "").partition("#")[0]
        if base in ("forward", "backward", "backward input", "backward weight", "block", "block backward", "loss"):
            key = (base, int(events["step"][row]), int(events["stage"][row]), int(events["microbatch"][row]))
            found.setdefault(key, []).append(row)
    return found


def complete(run, schedule, steps, micro):
    """Every pass of every stage and micro-batch is marked once on its rank, with its layers inside."""
    ranks = len(run.parts)
    kinds = {"forward", "backward", "backward input", "backward weight"}
    for rank in range(ranks):
        events, found = run.table("events", rank), passes(run, rank)
        for step in steps:
            for stage in pipeline.stages_on(schedule, rank, ranks):
                for m in range(micro):
                    marked = {kind: found.get((kind, step, stage, m), []) for kind in kinds}
                    assert len(marked["forward"]) == 1
                    whole, parted = len(marked["backward"]), (len(marked["backward input"]), len(marked["backward weight"]))
                    assert (whole, parted) in ([(1, (0, 0))] if schedule not in PARTED else [(1, (0, 0)), (0, (1, 1))])
                    layers = {events.text("layer")[row] for row in found[("block", step, stage, m)]}
                    assert layers and layers <= {f"blocks.{n}" for n in range(8)}
                    assert {events.text("phase")[row] for row in marked["forward"]} == {"forward"}
                    rows = marked["backward"] + marked["backward input"] + marked["backward weight"]
                    assert {events.text("phase")[row] for row in rows} == {"backward"}
        for step in steps:
            rows = sorted(row for key, (row, *_) in found.items() if key[0] in kinds and key[1] == step)
            ends = events["ts"][rows] + events["dur"][rows]
            assert (ends[:-1] <= events["ts"][rows][1:]).all(), "passes of a rank overlap"
        extra = {kind for kind, *_ in found} - kinds - {"block", "block backward", "loss"}
        assert not extra


def test_a_run_has_mesh_groups_and_tags(zerobubble):
    assert zerobubble.manifest.mesh == {"pp": 2}
    assert zerobubble.manifest.coordinates == {"0": {"pp": 0}, "1": {"pp": 1}}
    assert [group["ranks"] for group in zerobubble.manifest.groups if group.get("axis") == "pp"] == [[0, 1]]
    complete(zerobubble, "zerobubble", (4, 5, 6), 4)


def test_a_run_has_no_quality_row_of_our_own_making(zerobubble):
    for rank in range(2):
        rows = zerobubble.table("quality", rank)
        assert [rows.row(n) for n in range(len(rows))] == []


def test_operators_carry_the_tags_of_their_pass(zerobubble):
    for rank in range(2):
        events = zerobubble.table("events", rank)
        products = [n for n, name in enumerate(events.text("name")) if name == "aten::addmm"]
        assert products
        assert {int(events["stage"][n]) for n in products} == {rank, rank + 2}
        assert {int(events["microbatch"][n]) for n in products} == {0, 1, 2, 3}
        assert {events.text("layer")[n] for n in products} == {f"blocks.{rank}", f"blocks.{rank + 2}"}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_every_schedule_marks_every_pass(run, tmp_path, schedule):
    words = ["--schedule", schedule, "--steps", "6", "--capture", "2:4", "--out", str(tmp_path / "run")]
    run(2, ["-m", "dtprof_sample_jobs.pipeline", *SMALL, *words])
    complete(dtprof.open_run(tmp_path / "run"), schedule, (2, 3), 4)


IMPOSSIBLE = [
    (1, "", "1f1b on one rank is no pipeline"),
    (1, "--schedule gpipe", "gpipe on one rank is no pipeline"),
    (4, "--microbatches 2", "needs a micro-batch for each of 4 stages, not 2"),
    (2, "--inject few_microbatches=all:1", "needs a micro-batch for each of 2 stages, not 1"),
    (2, "--schedule dualpipev --microbatches 3", "needs a micro-batch for each of 4 stages, not 3"),
    (4, "--schedule zbv", "has 8 stages, and the model 4 layers"),
    (2, "--schedule interleaved --microbatches 5", "cannot part 5 micro-batches into 2 rounds"),
    (2, "--inject stage_imbalance=2:5ms", "there is no stage 2"),
    (2, "--checkpoint-stages 0,5", "there is no stage 5"),
]


@pytest.mark.parametrize(("ranks", "words", "message"), IMPOSSIBLE)
def test_what_cannot_be_run_is_refused_before_anything_starts(ranks, words, message):
    with pytest.raises(InputError, match=message):
        pipeline.check(options(*words.split()), ranks)


@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_stage_is_on_one_rank(schedule, ranks):
    held = [stage for rank in range(ranks) for stage in pipeline.stages_on(schedule, rank, ranks)]
    assert sorted(held) == list(range(pipeline.stages_of(schedule, ranks)))

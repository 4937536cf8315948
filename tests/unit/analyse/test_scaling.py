"""Efficiency and what ate the loss, from runs whose steps are known to the microsecond."""

import json

import pytest

from dtprof.analyse import study_of
from dtprof.analyse.scaling import scaling
from dtprof.cli import main
from dtprof.cli.scaling import lines
from dtprof.errors import InputError
from tests.unit.shapes.build import PartBuilder, matched, shape


def job(ranks, compute, comm, samples, **manifest):
    """Steps of ``compute`` us and then an exposed all-reduce of ``comm`` us on every rank."""
    parts = []
    for rank in range(ranks):
        made = PartBuilder(rank, rank, world_size=ranks, backend="gloo")
        training, gloo = made.thread(), made.thread("gloo", 2)
        group = made.group("0", tuple(range(ranks)))
        for step in range(3):
            at = step * (compute + comm)
            made.span(training, "cpu_op", "aten::mm", at, at + compute, step=step)
            event = made.span(gloo, "comm", "gloo:all_reduce", at + compute, at + compute + comm, step=step)
            made.comm(event, "all_reduce", group, step, 1 << 20)
            made.step(step, at, at + compute + comm, samples=samples)
        parts.append(made)
    run = matched(shape(parts, {}, kind="dtprof", world_size=ranks, **manifest))
    run.path = f"runs/{ranks}"
    return study_of(run)


def test_weak_scaling_loses_what_communication_adds():
    found = scaling([job(4, 1000, 600, 8), job(1, 1000, 0, 8), job(2, 1000, 250, 8)])
    assert (found.kind, found.unit) == ("weak", "samples")
    assert [r.size.ranks for r in found.rows] == [1, 2, 4]
    assert [r.efficiency for r in found.rows] == pytest.approx([1, 1000 / 1250, 1000 / 1600])
    assert [r.speedup for r in found.rows] == pytest.approx([1, 1.6, 2.5])
    last = found.rows[-1]
    assert last.eater == "comm_transfer_ns"
    assert last.lost["comm_transfer_ns"] == pytest.approx(600 / 1600)
    assert sum(last.lost.values()) == pytest.approx(1 - last.efficiency)


def test_strong_scaling_counts_work_that_does_not_shrink():
    # twice the ranks, half of the samples each: computing shrinks by a quarter only
    found = scaling([job(1, 1000, 0, 8), job(2, 750, 50, 4)])
    assert found.kind == "strong"
    last = found.rows[-1]
    assert last.efficiency == pytest.approx(1000 / (2 * 800))
    assert last.lost["compute_ns"] == pytest.approx((2 * 750 - 1000) / 1600)
    assert last.eater == "compute_ns"
    assert sum(last.lost.values()) == pytest.approx(1 - last.efficiency)


def test_a_perfect_job_has_no_eater():
    found = scaling([job(1, 1000, 0, 8), job(4, 1000, 0, 8)])
    assert found.rows[-1].efficiency == pytest.approx(1)
    assert found.rows[-1].eater is None


def test_a_rate_that_stays_while_the_batch_grows_is_said():
    found = scaling([job(1, 1000, 0, 8, knobs={"lr": 0.1}), job(4, 1000, 0, 8, knobs={"lr": 0.1})])
    assert any("learning rate stays 0.1" in note for note in found.notes)
    scaled = scaling([job(1, 1000, 0, 8, knobs={"lr": 0.1}), job(4, 1000, 0, 8, knobs={"lr": 0.4})])
    assert not scaled.notes


def test_without_samples_every_rank_counts_as_much():
    found = scaling([job(1, 1000, 0, None), job(2, 1000, 1000, None)])
    assert (found.kind, found.unit) == ("weak", "ranks")
    assert found.rows[-1].efficiency == pytest.approx(0.5)
    assert any("samples" in note for note in found.notes)


@pytest.mark.parametrize("sizes", [[2], [2, 2]])
def test_what_cannot_be_compared_is_an_error_with_a_remedy(sizes):
    with pytest.raises(InputError) as error:
        scaling([job(n, 1000, 100, 8) for n in sizes])
    assert error.value.hint


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_table_fits_and_says_what_ate_the_loss(width):
    found = scaling([job(1, 1000, 0, 8), job(4, 1000, 600, 8)])
    text = [str(line) for line in lines(found, width)]
    assert "efficiency 62%" in text[0] or "efficiency 63%" in text[0]
    assert "moving data" in text[0]


def test_the_verb_prints_json(truth, capsys):
    kineto = truth / "traces" / "kineto"
    paths = [str(kineto / "v100_rank1of2_allreduce_alltoall.json.gz"), str(kineto / "dlrm_8rank_v100")]
    assert main(["scaling", "--json", *paths]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [s["ranks"] for s in document["sizes"]] == [2, 8]
    for row in document["sizes"]:
        assert sum(row["lost"].values()) == pytest.approx(1 - row["efficiency"])
    assert any("ranks are missing" in note for note in document["notes"])

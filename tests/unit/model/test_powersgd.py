"""PowerSGD: the bytes that its hook sends, and the step that three small reductions make."""

import numpy as np
import pytest

from dtprof.edits import parse_edits
from dtprof.model.ddp.powersgd import sent
from dtprof.model.whatif import what_if
from dtprof_collectors.ddp_lines import Config, Grads
from dtprof_collectors.ddp_tables import ddp_tables
from tests.unit.model.test_ddp import MIB, MS, SIZES, line, measured, work

COPY = 0.25
SHAPE = (512, 512)  # of float32: 1 MiB


@pytest.fixture
def run():
    """Sixteen gradients of 1 MiB on a slow network, and what their shapes are."""
    works = [work(*(20 + 5 * np.arange(1, 17)), copy=COPY, tail=8 * MS)] * 2
    found = measured(works, cost=line(alpha=2 * MS, per_mib=30 * MS, slowdown=2.0, per_op=0.0))[0]
    return with_shapes(found, [SHAPE] * len(SIZES))


def with_shapes(run, shapes):
    load = run.store.load

    def shaped(name, part):
        table = load(name, part)
        if name != "grads" or table is None or shapes is None:
            return table
        place = {f"layer{i}.weight": shape for i, shape in enumerate(shapes)}
        columns = np.array([place[n] for n in table.text("parameter")], np.int64)
        return table.with_columns(rows=columns[:, 0], columns=columns[:, 1])

    run.store.load = shaped
    return run


class TestSent:
    def test_a_matrix_travels_as_two_thin_ones(self):
        found = sent([MIB], [SHAPE], rank=4)
        assert (found.whole, found.p, found.q) == (0, 512 * 4 * 4, 512 * 4 * 4)
        assert (found.matrices, found.elements) == (1, 512 * 512)

    def test_vectors_and_what_would_not_halve_travel_whole(self):
        """768 x 1 is no matrix; 8 x 8 by rank 2 is 32 numbers of 64: not less than half."""
        found = sent([768 * 4, 64 * 4], [(768, 1), (8, 8)], rank=2)
        assert (found.whole, found.p, found.q, found.matrices) == (768 * 4 + 64 * 4, 0, 0, 0)

    def test_the_rank_is_no_more_than_the_smaller_side(self):
        assert sent([64 * 4096 * 4], [(64, 4096)], rank=16).p == 64 * 16 * 4
        assert sent([64 * 4096 * 4], [(64, 4096)], rank=999).whole == 64 * 4096 * 4

    def test_bytes_follow_the_type(self):
        assert sent([512 * 512 * 2], [SHAPE], rank=1).p == 512 * 2


class TestPredicted:
    def test_the_step_is_that_of_three_small_reductions_after_the_backward_pass(self, run):
        found = what_if(run, parse_edits(["comm.powersgd_rank=1"]))
        # ready at 100 ms, one copy in and all out, 8 ms of rest; latency three times, and no bytes to speak of
        ready, copies, rest, reductions = 100 * MS, COPY * 17 * MIB, 8 * MS, 3 * 2 * MS
        least = ready + copies + rest + reductions
        work_ns = [c * COPY * 16 * MIB + 6 * 16 * 512 * 512 / f * 1e9 + 16 * m
                   for c, f, m in ((3.0, 60e9, 0.1e6), (9.0, 5e9, 0.6e6))]  # fmt: skip
        # what an empty reduction takes is read off larger ones
        assert found.low_ns == pytest.approx(least + work_ns[0], rel=0.04)
        assert least + work_ns[0] < found.predicted_ns < least + work_ns[1]
        assert found.high_ns == pytest.approx(least + work_ns[1], rel=0.04)
        assert found.predicted_ns < 0.5 * found.measured_ns

    def test_it_says_what_the_price_leaves_out(self, run):
        notes = " ".join(what_if(run, parse_edits(["comm.powersgd_rank=2"])).notes)
        assert "in one bucket" in notes
        assert "the losses will differ" in notes
        assert "is not measured" in notes

    def test_a_larger_rank_takes_longer(self, run):
        steps = [what_if(run, parse_edits([f"comm.powersgd_rank={r}"])).predicted_ns for r in (1, 4, 32)]
        assert steps == sorted(steps)

    @pytest.mark.parametrize(
        ("shapes", "edits", "reason"),
        [
            (None, ["comm.powersgd_rank=1"], "shapes of the parameters are not in the run"),
            ([(MIB // 4, 1)] * 16, ["comm.powersgd_rank=1"], "no gradient is a matrix"),
            ([SHAPE] * 16, ["comm.powersgd_rank=1", "comm.dtype=bf16"], "alone"),
        ],
    )
    def test_it_is_withheld_with_the_reason(self, run, shapes, edits, reason):
        works = [work(*(20 + 5 * np.arange(1, 17)), copy=COPY, tail=8 * MS)] * 2
        bare = measured(works, cost=line(alpha=2 * MS, per_mib=30 * MS))[0]
        found = what_if(with_shapes(bare, shapes), parse_edits(edits))
        assert reason in found.withheld[0]


def config(**more):
    parameters = [("w", 2048, "float32"), ("b", 64, "float32")]
    return Config(
        model=0, module="Net", bucket_cap_mb=None, bucket_cap_bytes=None, find_unused_parameters=False, static_graph=False,
        gradient_as_bucket_view=False, broadcast_buffers=True, comm_hook=None, ranks=[0], backend="gloo", parameters=parameters,
        **more,
    )  # fmt: skip


def test_shapes_reach_the_table_of_gradients_and_are_missing_in_older_recordings():
    line = Grads(model=0, step=1, ready=[(1, 5), (0, 7)], unused=[], join=False, sync=True)
    grads = ddp_tables([config(matrices=[(32, 16), (16, 1)]), line], [], 0)["grads"]
    assert [(g["parameter"], g["rows"], g["columns"]) for g in map(grads.row, range(2))] == [("w", 32, 16), ("b", 16, 1)]
    older = ddp_tables([config(), line], [], 0)["grads"]
    assert older.row(0)["rows"] is None

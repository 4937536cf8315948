"""FSDP2 on a device: what the model reads from traces of streams is what streams under torch's own rules would have done."""

import numpy as np
import pytest

import dtprof
from dtprof.edits import parse_edits
from dtprof.model.fsdp.device import observe_device
from dtprof.model.fsdp.predict import Change, FsdpModel
from dtprof.model.whatif import what_if
from tests.unit.kineto_maker import Trace

# us of a unit's passes and operations
FORWARD, BACKWARD, GATHER, REDUCE, COPY, HOST = 3000, 6000, 4000, 2500, 50, 40
UNITS, ELEMENTS = 5, 1 << 20


class Streams:
    """One rank: a host thread that launches, a compute stream, and one communicator that moves one operation at a time."""

    def __init__(self, rank, depth, waits, keeps, backward_depth):
        self.trace = Trace(rank, 2)
        self.depth, self.waits, self.keeps, self.backward_depth = depth, waits, keeps, backward_depth
        self.host = self.compute = self.free = 0
        self.seq = 0

    def launch(self, name, stream, begin, took):
        at = self.host
        self.host += HOST
        start = max(begin, at + 5)
        self.trace.run(name, at, start, start + took, stream)
        return start + took

    def collective(self, name, kernel, stream, begin, took, given, got):
        self.seq += 1
        at = self.host
        end = self.launch(kernel, stream, max(begin, self.free), took)
        self.trace.op("record_param_comms", at - 1, self.host, **{
            "Collective name": name, "Seq": self.seq, "Group size": 2, "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
            "In msg nelems": given, "Out msg nelems": got, "dtype": "Float",
        })  # fmt: skip
        self.free = end
        return end

    def within(self, name):
        trace, begin, me = self.trace, self.host, self

        class Range:
            def __enter__(self):
                me.host += 2

            def __exit__(self, *_):
                me.host += 2
                trace.range(name, begin, me.host)

        return Range()

    def gather(self, unit, after):
        with self.within(f"FSDP::all_gather (blocks.{unit})"):
            self.coming[unit] = self.collective(
                "_allgather_base", "ncclDevKernel_AllGather_RING_LL", 20, after, GATHER, ELEMENTS // 2, ELEMENTS
            )

    def copy_out(self, unit):
        with self.within(f"FSDP::all_gather_copy_out (blocks.{unit})"):
            self.compute = self.launch("split_with_sizes_copy_kernel", 7, max(self.compute, self.coming.pop(unit)), COPY)
        self.copied[unit] = self.compute
        self.there.add(unit)

    def forward(self, unit):
        # the streams of gathers have waited for the copy-out of the unit before the last one
        after = self.copied.get(unit - 2, self.begin)
        with self.within(f"FSDP::pre_forward (blocks.{unit})"):
            if unit not in self.coming:
                self.gather(unit, after)
            self.copy_out(unit)
        for ahead in range(unit + 1, min(unit + 1 + self.depth, UNITS)):
            if ahead not in self.coming:
                with self.within(f"FSDP::forward_prefetch for blocks.{ahead}"):
                    self.gather(ahead, self.copied.get(unit - 1, self.begin))
        self.compute = self.launch("gemm", 7, self.compute, FORWARD)
        with self.within(f"FSDP::post_forward (blocks.{unit})"):
            if not self.keeps:
                self.there.discard(unit)
        if self.waits:
            self.host = max(self.host, self.compute)

    def backward(self, unit):
        with self.within(f"FSDP::pre_backward (blocks.{unit})"):
            if unit not in self.there:
                if unit not in self.coming:
                    self.gather(unit, self.compute)
                self.copy_out(unit)
            for ahead in range(unit - 1, max(unit - 1 - self.backward_depth, -1), -1):
                if ahead not in self.coming and ahead not in self.there:
                    with self.within(f"FSDP::backward_prefetch for blocks.{ahead}"):
                        self.gather(ahead, self.copied[unit])
        self.compute = self.launch("gemm", 7, self.compute, BACKWARD)
        with self.within(f"FSDP::post_backward_reshard (blocks.{unit})"):
            self.there.discard(unit)
        with self.within(f"FSDP::post_backward_rs_wait (blocks.{unit})"):
            self.compute = max(self.compute, self.reduced)
        with self.within(f"FSDP::post_backward_reduce (blocks.{unit})"):
            self.compute = self.launch("chunk_cat_kernel", 7, self.compute, COPY)
            self.reduced = self.collective(
                "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", 21, self.compute, REDUCE, ELEMENTS,
                ELEMENTS // 2,
            )  # fmt: skip
        if self.waits:
            self.host = max(self.host, self.compute)

    def step(self, number):
        self.host = self.begin = max(self.host, self.compute) + 100
        self.coming, self.copied, self.there, self.reduced = {}, {}, set(), 0
        start = self.begin
        self.host += 10
        self.compute = self.launch("embedding", 7, self.begin, 20)
        self.device = self.compute - 20
        for unit in range(UNITS):
            self.forward(unit)
        for unit in reversed(range(UNITS)):
            self.backward(unit)
        self.compute = self.launch("adam", 7, max(self.compute, self.reduced), 500)
        self.host = max(self.host, self.compute)
        self.trace.step(number, start, self.host)
        return self.compute - self.device


def job(folder, depth=0, waits=False, keeps=False, backward_depth=1):
    """(run of two equal ranks, us of a step on the device)."""
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        streams = Streams(rank, depth, waits, keeps, backward_depth)
        lengths = [streams.step(n) for n in range(3)]
        streams.trace.write(folder / f"rank{rank}.json")
    return dtprof.open_run(folder), lengths[-1]


@pytest.mark.parametrize("waits", [False, True])
def test_the_measured_step_is_replayed(tmp_path, waits):
    run, length = job(tmp_path / "a", waits=waits)
    seen = observe_device(run)
    assert [u.name for u in seen.units] == [f"blocks.{i}" for i in range(UNITS)]
    assert all(u.bytes == 4 * ELEMENTS for u in seen.units)
    model = FsdpModel(seen)
    assert model.replay_error < 0.01
    assert np.median([r.times.length for r in model.base.values()]) == pytest.approx(length * 1e3, rel=0.01)


def test_prefetch_hides_what_a_host_that_waits_exposes(tmp_path):
    """A host that waits for each unit's computing asks for the next gather too late: all of it is exposed."""
    run, late = job(tmp_path / "a", waits=True)
    _, early = job(tmp_path / "b", waits=True, depth=1)
    found = FsdpModel(observe_device(run)).predict(Change(prefetch=1))
    assert late - early > 0.8 * (UNITS - 1) * min(FORWARD, GATHER)
    base = FsdpModel(observe_device(run))
    saved = np.median([base.base[n].times.length - base.step(n, Change(prefetch=1)).times.length for n in base.base])
    assert saved == pytest.approx((late - early) * 1e3, rel=0.1)
    assert found.waiting[1] < found.waiting[0]


def test_prefetch_brings_nothing_where_the_host_runs_ahead(tmp_path):
    run, plain = job(tmp_path / "a")
    _, ahead = job(tmp_path / "b", depth=1)
    model = FsdpModel(observe_device(run))
    change = np.median([model.step(n, Change(prefetch=1)).times.length - model.base[n].times.length for n in model.base])
    assert change == pytest.approx((ahead - plain) * 1e3, abs=0.02 * plain * 1e3)


@pytest.mark.parametrize("waits", [False, True])
def test_units_that_stay_save_the_second_gather(tmp_path, waits):
    run, plain = job(tmp_path / "a", waits=waits)
    _, kept = job(tmp_path / "b", waits=waits, keeps=True)
    model = FsdpModel(observe_device(run))
    change = Change(reshard=False)
    saved = np.median([model.base[n].times.length - model.step(n, change).times.length for n in model.base])
    assert saved == pytest.approx((plain - kept) * 1e3, abs=0.03 * plain * 1e3)
    assert model.step(0, change).ranks[0].peak == UNITS * 4 * ELEMENTS


def test_the_answer_names_the_stream_and_what_it_cannot_do(tmp_path):
    run, _ = job(tmp_path / "a", waits=True)
    found = what_if(run, parse_edits(["fsdp.prefetch=1"]))
    assert (found.model, found.withheld) == ("FSDP2 on a device", ())
    assert any("compute stream waits" in note for note in found.notes)
    assert found.make_run is None
    assert "other units on a device" in what_if(run, parse_edits(["fsdp.wrap=2"])).withheld[0]
    assert "how far the host runs ahead" in what_if(run, parse_edits(["fsdp.prefetch=0"])).withheld[0]


def test_one_rank_of_two_is_withheld(tmp_path):
    job(tmp_path / "a")
    alone = dtprof.open_run(tmp_path / "a" / "rank0.json")
    assert "1 of 2 ranks" in what_if(alone, parse_edits(["fsdp.prefetch=1"])).withheld[0]

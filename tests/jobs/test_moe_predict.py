"""Even experts and a capacity, predicted from one run of the job moe, against runs that have them."""

import numpy as np
import pytest

pytest.importorskip("torch")

import dtprof
from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.model.whatif import what_if

pytestmark = pytest.mark.slow

EMULATION = '[[layers]]\nname = "block"\nrepeat = 2\nforward_ms = 2\nbackward_ms = 4\ntensors = [65536]\n'
SKEWED, EVEN = "router_skew=1:0.8", "router_skew=1:0.5"  # of two experts, one on each rank
WITHIN = 0.08
FIRST, END = 2, 8


def measured(run):
    """Median over the captured steps of the longer rank's duration, ns."""
    steps = [run.table("steps", p.ordinal) for p in run.parts]
    rows = [dict(zip(s["step"].tolist(), s["host_dur"].tolist(), strict=True)) for s in steps]
    return float(np.median([max(mine[k] for mine in rows) for k in range(FIRST, END)]))


@pytest.fixture(scope="module")
def job(run, tmp_path_factory):
    """``job(fault, *options)``: two ranks with one expert each, which takes 1 ms per token and 2 ms backward.

    The shorter of two runs: what others do on the machine only adds.
    """
    folder = tmp_path_factory.mktemp("experts")
    (folder / "layers.toml").write_text(EMULATION)
    kept = {}

    def once(out, fault, *words):
        options = ["--emulate", str(folder / "layers.toml"), "--batch", "64", "--expert-us", "1000", "--experts", "2"]
        window = ["--experts-per-token", "1", "--steps", str(END + 1), "--capture", f"{FIRST}:{END}", "--out", str(out)]
        run(2, ["-m", "dtprof_sample_jobs.moe", *options, *window, "--inject", fault, *words])
        return dtprof.open_run(out)

    def go(*words):
        if words not in kept:
            kept[words] = min((once(folder / f"{len(kept)}-{n}", *words) for n in range(2)), key=measured)
        return kept[words]

    return go


def predicted(run, edit):
    found = what_if(run, parse_edits([edit]))
    assert not found.withheld, found.withheld
    return found


def test_a_skewed_run_tells_what_even_experts_would_take(job):
    found = predicted(job(SKEWED), "moe.balance=even")
    assert found.predicted_ns == pytest.approx(measured(job(EVEN)), rel=WITHIN)
    # of 128 tokens in each of two layers 38 leave the busiest rank, 3 ms each
    assert found.saved_ns == pytest.approx(2 * 38 * 3e6, rel=0.15)
    finding = {f.rule: f for f in findings(study_of(job(SKEWED)))}["moe.expert_balance"]
    assert finding.edit == {"moe.balance": "even"} and finding.prediction is not None
    assert finding.prediction.seconds_per_step == pytest.approx(found.saved_ns / 1e9)


def test_a_capacity_takes_what_a_run_with_it_takes(job):
    found = predicted(job(SKEWED), "moe.capacity_factor=1.25")
    capped = job(SKEWED, "--capacity-factor", "1.25")
    assert found.predicted_ns == pytest.approx(measured(capped), rel=WITHIN)
    (layer, *_) = study_of(capped).result("moe").layers
    assert f"{100 * layer.dropped:.0f}% of the assignments are dropped" in found.notes[-1]


def test_even_experts_have_nothing_to_gain(job):
    found = predicted(job(EVEN), "moe.balance=even")
    assert found.predicted_ns == pytest.approx(found.measured_ns, rel=0.01)
    assert not [f for f in findings(study_of(job(EVEN))) if f.rule.startswith("moe.") and f.severity != "low"]

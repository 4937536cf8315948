"""Rules that predict: what they recommend is what the job would do, and they keep silent where the model does."""

import numpy as np

from dtprof.advise import findings
from dtprof.advise.predicted import outcome, with_prediction
from dtprof.analyse import study_of
from dtprof.edits import parse_edits
from dtprof.findings import Finding
from dtprof.model.ddp.buckets import Caps, assign
from dtprof.model.ddp.gloo import simulate
from tests.unit.model.test_ddp import COST, DRAG, SIZES, line, measured, work


def run_on(cost, late=0.0):
    ready = 20 + 5 * np.arange(1, 17)
    works = [work(*ready, copy=0.25, tail=8e6), work(*(ready + late), copy=0.25, tail=8e6)]
    return measured(works, cost=cost)[0], works


def by_rule(run):
    return {f.rule: f for f in findings(study_of(run))}


def test_the_recommended_size_is_within_two_percent_of_the_best():
    run, works = run_on(COST)
    finding = by_rule(run)["ddp.bucket_size"]

    def takes(caps):
        return simulate(works, SIZES, assign(SIZES, range(16), caps), COST, drag=DRAG).length

    chosen = takes(Caps.of(finding.edit["ddp.bucket_cap_mb"]))
    assert chosen <= 1.02 * min(takes(Caps.of(cap)) for cap in np.geomspace(0.5, 100, 40))
    assert finding.prediction.low <= (takes(Caps.of()) - chosen) / 1e9 <= finding.prediction.high


def test_a_fast_network_needs_no_other_buckets():
    run, _ = run_on(line(alpha=1e5, per_mib=1e5))
    assert not {"ddp.bucket_size", "ddp.compression"} & by_rule(run).keys()


def test_half_the_bytes_are_advised_on_a_slow_network_and_never_loudly():
    run, _ = run_on(line(alpha=1e6, per_mib=3e7))
    finding = by_rule(run)["ddp.compression"]
    assert finding.severity == "low"
    assert finding.prediction.low > 0


def test_one_slow_rank_has_the_price_of_its_repair():
    run, _ = run_on(COST, late=20.0)
    found = outcome(run, parse_edits(["ideal.rank=1"]))
    plain = Finding("straggler.compute_rank", "high", "t", (1,), (0,), 0.02, (), "w", "look at it", "a", "v")
    told = with_prediction(study_of(run), plain)
    assert told.prediction == found.saving()
    assert "Repaired: " in told.next
    assert "instead of" in told.next


def test_two_slow_ranks_have_none():
    run, _ = run_on(COST, late=20.0)
    plain = Finding("straggler.compute_rank", "high", "t", (0, 1), (0,), 0.02, (), "w", "n", "a", "v")
    assert with_prediction(study_of(run), plain) is plain


def test_large_device_runs_do_not_keep_a_report_waiting(truth, monkeypatch):
    import dtprof

    run = dtprof.open_run(truth / "traces" / "kineto" / "dlrm_8rank_v100")
    monkeypatch.setattr("dtprof.advise.predicted.MOST_DEVICE_OPERATIONS", 10)
    assert outcome(run, parse_edits(["ideal.communication=true"])) is None

"""Rules on FSDP2's gathers: what they recommend is what the job would do, and they abstain with the reason where they must."""

import pytest

from dtprof.advise.rules.overlap import FsdpPrefetch, Reshard, WrapSize
from dtprof.analyse import study_of
from dtprof.cli.tune import best
from dtprof.cli.whatif import write
from dtprof.model.fsdp.predict import Change
from dtprof.model.fsdp.program import Plan
from dtprof.run import Manifest, MemoryStore, Run
from dtprof.table import Table
from tests.unit.model.test_fsdp import SIZE, measured, network, program, shell

GIB = 1 << 30


def with_memory(run, peak=GIB, total=None):
    """The run with the peak of every rank recorded, and, where given, what its device has."""
    held = {}
    for part in run.parts:
        rows = [{"step": s, "metric": "memory_rss_peak", "value": float(peak), "unit": "bytes"} for s in range(3)]
        held["metrics", part.ordinal] = Table.from_rows("metrics", rows)
        names = ("events", "steps", "comm", "groups", "lanes", "quality")
        held |= {(name, part.ordinal): run.table(name, part.ordinal) for name in names}
        part.extra["collectors"] = [{"name": "nvml", "facts": {"memory_total": total}}] if total else []
    held |= {(name, None): run.table(name) for name in ("collectives", "participations")}
    return Run(run.manifest, MemoryStore(held), "", "dtprof")


def the(rule, run):
    (finding,) = rule.find(study_of(run))
    return finding


def test_a_prefetch_is_advised_with_what_the_job_would_gain():
    run, truth = measured()
    finding = the(FsdpPrefetch(), run)
    assert finding.edit == {"fsdp.prefetch": 1}  # two ahead bring less than a hundredth more, and hold more
    gain = truth.step(0, Change()).times.length - truth.step(0, Change(prefetch=1)).times.length
    assert finding.prediction.low <= gain / 1e9 <= finding.prediction.high
    assert "set_modules_to_forward_prefetch" in finding.apply and "dtprof verify" in finding.verify


def test_tune_takes_it_since_a_launcher_can_apply_it(tmp_path):
    write(measured()[0], tmp_path / "run")
    assert best(tmp_path / "run").edit == {"fsdp.prefetch": 1}


def test_a_run_that_prefetches_already_is_left_alone():
    run, _ = measured(Plan(1, 1, waits=False))
    assert "gain too little" in FsdpPrefetch().abstains(study_of(run))
    assert list(FsdpPrefetch().find(study_of(run))) == []


def test_a_fast_network_needs_nothing():
    run, _ = measured(cost=network(latency=0.02, per_mib=0.05), programs=[program(5, 5, 9, call=0.01)] * 2)
    lens = study_of(with_memory(run))
    assert all("gain too little" in rule.abstains(lens) for rule in (FsdpPrefetch(), Reshard(), WrapSize()))


def test_keeping_parameters_states_the_bytes():
    run, _ = measured()
    finding = the(Reshard(), with_memory(run))
    assert finding.edit == {"fsdp.reshard_after_forward": False}
    assert "3.00 MiB per rank" in finding.title.replace("\xa0", " ")


def test_units_are_put_together_where_latency_rules():
    sizes = [SIZE, SIZE, 2 * SIZE, 2 * SIZE, SIZE]
    run, _ = measured(cost=network(latency=12, per_mib=2), programs=[program(5, call=0.1, sizes=sizes)] * 2, sizes=sizes)
    finding = the(WrapSize(), run)
    assert finding.edit["fsdp.wrap"] > 1
    assert "a launcher cannot" in finding.apply


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: run, "memory the ranks take was not recorded"),
        (lambda run: with_memory(run, peak=GIB, total=GIB + SIZE), "on the fullest device"),
    ],
)
def test_memory_that_is_unknown_or_short_keeps_parameters_from_being_kept(change, reason):
    run, _ = measured()
    assert reason in Reshard().abstains(study_of(change(run)))
    assert list(Reshard().find(study_of(change(run)))) == []


@pytest.mark.parametrize("rule", [FsdpPrefetch(), Reshard(), WrapSize()])
def test_every_rule_says_why_it_abstains(rule):
    assert "no range of FSDP2" in rule.abstains(study_of(shell()))
    run, _ = measured()
    alone = Run(Manifest(run_id="m", world_size=2, parts=run.manifest.parts[:1]), run.store, "", "dtprof")
    assert "1 of 2 ranks" in rule.abstains(study_of(alone))
    single, _ = measured(count=1)
    assert "single unit" in rule.abstains(study_of(single)) or "no two units" in rule.abstains(study_of(single))


def test_a_compiled_model_is_left_alone():
    run, _ = measured()
    made = with_memory(run)
    rows = [{"step": 0, "metric": "compiles", "value": 1.0}]
    made.store._tables["metrics", 0] = Table.from_rows("metrics", rows)
    assert "compiled" in FsdpPrefetch().abstains(study_of(made))


def test_a_report_does_not_wait_for_very_many_operations(monkeypatch):
    run, _ = measured()
    monkeypatch.setattr("dtprof.advise.rules.overlap.MOST_OPERATIONS", 3)
    assert "ask dtprof whatif" in FsdpPrefetch().abstains(study_of(run))


def test_a_replay_that_is_off_is_no_base_for_advice(monkeypatch):
    run, _ = measured(programs=[program(5, 5, 9, call=0.1)] * 2)
    monkeypatch.setattr("dtprof.model.fsdp.whatif.MOST_REPLAY_ERROR", -1.0)
    assert "replay" in FsdpPrefetch().abstains(study_of(run))

"""FSDP2's steps really run otherwise: what was predicted from one run is what the settings take in the network lab."""

import json
import os
import statistics
import sys

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof.edits import parse_edits
from dtprof.launch import construct
from dtprof.model.whatif import what_if
from dtprof_sample_jobs.lab.processes import run_ranks
from dtprof_sample_jobs.lab.spec import parse_lab

MOST_OFF = 0.08
AHEAD = "--async-gathers --forward-prefetch 1 --backward-prefetch 1"
SETTINGS = {
    "--strategy zero3": "",
    f"--strategy zero3 {AHEAD}": "fsdp.prefetch=1",
    "--strategy zero2": "fsdp.reshard_after_forward=false",
    f"--strategy zero2 {AHEAD}": "fsdp.prefetch=1 fsdp.reshard_after_forward=false",
}
EMULATION = """
[[layers]]
name = "block"
repeat = 6
forward_ms = 10
backward_ms = 20
tensors = [1048576, 4096]
"""
# a script that knows nothing of the edit, in one process with one rank
SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from dtprof.edits import parse_edits
from dtprof.launch import construct
from dtprof.session import launched
construct.apply(parse_edits(["{edit}"]))
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
for layer in model:
    fully_shard(layer)
model[0].set_modules_to_forward_prefetch([model[3]])
fully_shard(model)
model[1].set_modules_to_backward_prefetch([model[3]])
states = [layer._get_fsdp_state() for layer in model]
for name in ("_states_to_forward_prefetch", "_states_to_backward_prefetch"):
    print(name, [[states.index(s) for s in getattr(state, name)] for state in states])
print("waits", [g.unshard_async_op for s in states for g in s._fsdp_param_groups])
model(torch.randn(2, 4)).sum().backward()
print("told", launched.facts["edits"]["{edit}"])
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def measured(network_lab, tmp_path_factory, scripts):
    """(the captured run, setting -> median seconds of its steps by turns)."""
    out = tmp_path_factory.mktemp("settings")
    spec = parse_lab("rate=1gbit,rtt=1ms", 2)
    (out / "emulation.toml").write_text(EMULATION)
    words = [sys.executable, str(scripts / "fsdp_settings.py"), str(out), str(out / "emulation.toml"), "20", *SETTINGS]
    assert run_ranks(spec, words, dict(os.environ, OMP_NUM_THREADS="1"), stdout=2) == 0
    found = json.loads((out / "rank0.json").read_text())
    return dtprof.open_run(out / "run"), {words: statistics.median(seconds) for words, seconds in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("setting", [s for s, edits in SETTINGS.items() if edits])
def test_prefetch_and_reshard_take_what_was_predicted(measured, setting):
    """As a ratio to the captured setting, which a busy machine slows as well."""
    run, seconds = measured
    found = what_if(run, parse_edits(SETTINGS[setting].split()))
    assert found.withheld == ()
    predicted = found.predicted_ns / found.measured_ns
    assert seconds[setting] / seconds["--strategy zero3"] == pytest.approx(predicted, rel=MOST_OFF)


@pytest.mark.slow
def test_the_reference_job_passes_the_gates_or_says_why(run, tmp_path):
    """Real computing on few cores: what it replays is believed, what it does not is withheld for that reason."""
    words = [
        "--steps",
        "20",
        "--capture",
        "12:18",
        "--layers",
        "4",
        "--dim",
        "128",
        "--seq",
        "64",
        "--out",
        str(tmp_path / "run"),
    ]
    run(2, ["-m", "dtprof_sample_jobs.fsdp", *words])
    found = what_if(dtprof.open_run(tmp_path / "run"), parse_edits(["fsdp.reshard_after_forward=false"]))
    assert found.replay_error is not None
    if found.withheld:
        assert "replay of the measured steps" in found.withheld[0]
    else:
        assert found.low_ns <= found.predicted_ns <= found.high_ns


def test_fsdp1_has_switches_where_fsdp2_has_depths():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    arguments = {}
    construct._replace_sharding(arguments, None, parse_edits(["fsdp.prefetch=1", "fsdp.reshard_after_forward=false"]))
    assert arguments == {
        "forward_prefetch": True, "backward_prefetch": fsdp.BackwardPrefetch.BACKWARD_PRE,
        "sharding_strategy": fsdp.ShardingStrategy.SHARD_GRAD_OP,
    }  # fmt: skip
    construct._replace_sharding(arguments, None, parse_edits(["fsdp.prefetch=0"]))
    assert arguments["forward_prefetch"] is False and arguments["backward_prefetch"] is None
    with pytest.raises(TypeError, match="one unit ahead"):
        construct._replace_sharding({}, None, parse_edits(["fsdp.prefetch=2"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "forward", "backward", "own"),
    [
        ("fsdp.prefetch=2", "[[1, 2], [2, 3], [3], []]", "[[], [0], [1, 0], [2, 1]]", True),
        ("fsdp.prefetch=0", "[[], [], [], []]", "[[], [], [], []]", False),
    ],
)
def test_prefetch_is_applied_to_a_script_that_names_other_units(run, tmp_path, edit, forward, backward, own):
    (tmp_path / "script.py").write_text(SCRIPT.format(edit=edit))
    (rank,) = run(1, [str(tmp_path / "script.py")])
    assert f"_states_to_forward_prefetch {forward}" in rank.output
    assert f"_states_to_backward_prefetch {backward}" in rank.output
    assert f"waits {[own] * 4}" in rank.output
    assert "'applied_to': 4" in rank.output and "'own_lists': 'left out'" in rank.output

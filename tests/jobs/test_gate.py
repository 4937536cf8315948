"""The gate on real training in the network lab: planted faults fail and are named, the same command does not."""

import subprocess
import sys
from functools import cache

import pytest

from benchmarks import gate_lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GATES, TRIALS = 5, 200
# busy and idle in turn for up to 1.5 s each, for two minutes at most
BURNER = """
import random, time
end = time.monotonic() + 120
while time.monotonic() < end:
    busy = time.monotonic() + random.uniform(0.2, 1.5)
    while time.monotonic() < busy:
        pass
    time.sleep(random.uniform(0.2, 1.5))
"""


@pytest.fixture(scope="module")
def lab(network_lab, tmp_path_factory):
    """(words of the job's command, folder), with both ranks loaded and waiting."""
    folder = tmp_path_factory.mktemp("lab")
    with gate_lab.warm_lab(folder) as job:
        yield job, folder


@pytest.fixture(scope="module")
def gate(lab):
    """``gate(kind, seed)``: the row of that gate, which is run once."""
    job, folder = lab
    return cache(lambda kind, seed: gate_lab.gate(job, kind, seed, folder))


@pytest.fixture
def busy():
    """Two processes that take the cores now and then."""
    burners = [subprocess.Popen([sys.executable, "-I", "-S", "-c", BURNER]) for _ in range(2)]
    yield
    for burner in burners:
        burner.kill()
        burner.wait()


@pytest.mark.parametrize("seed", range(GATES))
def test_tiny_buckets_fail_and_exposed_communication_is_named(gate, seed):
    found = gate("tiny_buckets", seed)
    assert found["outcome"] == "fail" and "exposed communication" in found["headline"], found["headline"]


@pytest.mark.parametrize("seed", range(GATES))
def test_a_slow_forward_fails_and_compute_on_its_rank_is_named(gate, seed):
    found = gate("slow_rank", seed)
    assert found["outcome"] == "fail" and "compute on rank 1" in found["headline"], found["headline"]


@pytest.mark.parametrize("seed", range(GATES))
def test_the_same_command_does_not_fail(gate, seed):
    found = gate("same", seed)
    assert found["outcome"] != "fail", found["headline"]


@pytest.mark.parametrize("kind", gate_lab.KINDS)
def test_gates_of_resampled_steps(gate, kind):
    found = gate_lab.resampled([gate(kind, seed) for seed in range(GATES)], TRIALS)
    if kind == "same":
        assert found["fail"] <= 0.01 * TRIALS
    else:
        assert found["fail"] == TRIALS


def test_a_busy_machine_is_inconclusive_and_says_its_noise(lab, busy):
    job, folder = lab
    found = gate_lab.gate(job, "same", 99, folder, model=gate_lab.COMPUTING)
    assert found["outcome"] == "inconclusive" and "noise of a pair" in found["headline"], found["headline"]

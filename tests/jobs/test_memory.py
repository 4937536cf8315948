"""Memory of two real ranks: bytes by hand, a planted leak with its size, blocks of a real trace."""

import json

import pytest

pytest.importorskip("torch")

import dtprof
from dtprof.analyse import study_of
from dtprof.cli import main

# Linear(128, 256) and Linear(256, 64), float32
SIZES = {"0": (128 * 256 + 256) * 4, "2": (256 * 64 + 64) * 4}
TOTAL = sum(SIZES.values())
LEAK = 256 << 10
# a linear layer keeps its input and gives its result; the ReLU keeps its own; the mean of squares keeps what it squares
BATCH = 32
ACTIVATIONS = {"1": BATCH * 256 * 4, "2": BATCH * 64 * 4}


def job(run, scripts, tmp_path_factory, what):
    folder = tmp_path_factory.mktemp(what)
    run(2, [str(scripts / "memory.py"), str(folder / "run"), what])
    return folder / "run"


@pytest.fixture(scope="module")
def ddp(run, scripts, tmp_path_factory):
    return job(run, scripts, tmp_path_factory, "ddp")


def parts(folder):
    found = study_of(dtprof.open_run(folder)).result("memory").parts
    assert [p.rank for p in found] == [0, 1]
    return found


def by_module(part, category):
    return {o.name: o.bytes for o in part.modules if o.category == category}


def test_the_state_of_a_ddp_model_to_the_byte(ddp):
    for part in parts(ddp):
        assert by_module(part, "parameter") == by_module(part, "gradient") == SIZES
        assert by_module(part, "optimizer") == {name: 2 * size + 8 for name, size in SIZES.items()}
        assert part.categories["communication"] == TOTAL
        assert part.categories["activation"] is None
        assert "profile_memory" in part.why["activation"]


def test_the_planted_leak_is_found_on_its_rank_and_nowhere_else(ddp):
    healthy, leaking = parts(ddp)
    assert leaking.creep.grows
    assert leaking.creep.low <= LEAK <= leaking.creep.high
    assert leaking.creep.bytes_per_step == pytest.approx(LEAK, rel=0.1)
    assert not healthy.creep.grows
    assert leaking.peak.basis == "resident"


def test_the_report_says_so(ddp, capsys):
    assert main(["report", str(ddp), "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert [part["creep"]["grows"] for part in memory] == [False, True]
    assert main(["report", str(ddp)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "rank 1: Creep: resident memory grows by" in text


@pytest.mark.slow
def test_shards_of_an_fsdp_model(run, scripts, tmp_path_factory):
    for part in parts(job(run, scripts, tmp_path_factory, "fsdp")):
        assert by_module(part, "parameter") == {name: size // 2 for name, size in SIZES.items()}
        assert by_module(part, "gradient") == by_module(part, "parameter")
        # the step counters are not sharded
        assert by_module(part, "optimizer") == {name: size + 8 for name, size in SIZES.items()}


def test_blocks_of_a_trace_with_allocator_events(run, scripts, tmp_path_factory):
    for part in parts(job(run, scripts, tmp_path_factory, "detail")):
        found = by_module(part, "activation")
        assert {name: found[name] for name in ACTIVATIONS} == ACTIVATIONS
        assert part.categories["temporary"] > 0
        assert part.categories["communication"] is None
        assert by_module(part, "gradient") == SIZES

"""``dtprof run`` around scripts that know nothing of it: the same losses to the last bit, and the right steps."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dtprof.ingest import open_run
from dtprof.jsonl import read_lines
from dtprof.run import read_manifest
from dtprof.session.folder import describe

DTPROF = str(Path(sys.executable).with_name("dtprof"))
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
STEPS = 10


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def losses(self):
        return sorted(line for line in (self.out + self.err).splitlines() if line.startswith("rank"))


def execute(words, **changes):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC", "DTPROF_RUN", "MASTER_"))}
    env = {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **changes}
    done = subprocess.run([*map(str, words)], env=env, capture_output=True, text=True, check=False, timeout=500)
    return Done(done.returncode, done.stdout, done.stderr)


def both(tmp_path, command, *options, **changes):
    """The command alone and under ``dtprof run``: (run folder, document, measured)."""
    alone = execute(command, **changes)
    out = tmp_path / "run"
    measured = execute([DTPROF, "run", "--json", "--out", out, *options, "--", *command], **changes)
    assert (alone.code, measured.code) == (0, 0), alone.err + measured.err
    assert measured.losses == alone.losses
    assert len(alone.losses) > STEPS
    return out, json.loads(measured.out), measured


def extra(out, rank=0):
    return describe(out / f"part{rank:05d}").extra


def test_a_ddp_loop_is_measured_edited_and_unchanged(tmp_path, scripts):
    command = [sys.executable, scripts / "run_ranks.py", "torchrun", 2, scripts / "run_loop.py", "plain", STEPS]
    edits = ["--set", "ddp.bucket_cap_mb=0.002", "--set", "loader.num_workers=2"]
    out, document, measured = both(tmp_path, command, *edits, HOME="/proc/none")
    for rank in (0, 1):
        told = extra(out, rank)
        assert (told["steps_done"], told["steps"], told["failures"]) == (STEPS, "inferred from optimizer steps", [])
        assert told["launch"]["optimizers"] == "per step: AdamW 1 time"
    manifest = read_manifest(out / "manifest.json")
    applied = manifest.knobs["launch"]["edits"]["ddp.bucket_cap_mb=0.002"]
    assert applied == {"applied_to": 1, "target": "DistributedDataParallel", "before": None}
    (model,) = next(c for c in manifest.collectors if c["name"] == "ddp")["facts"]["models"]
    assert model["bucket_cap_bytes"] == int(0.002 * 2**20)
    layout = [r for r in read_lines(out / "part00000" / "ddp.jsonl")[0] if r["type"] == "layout"][-1]
    assert len(layout["buckets"]) == 2
    assert document["run"]["exit_code"] == 0 and document["source"]["ranks"] == [0, 1]
    assert any("inferred" in row["what"] for row in document["quality"])
    assert "--set loader.num_workers=2 was applied to nothing: no DataLoader was constructed" in measured.err
    run = open_run(out)
    assert set(run.table("steps", part=0).text("marked")) == {"inferred"}
    traced = [r["step"] for r in read_lines(out / "part00001" / "steps.jsonl")[0] if r["captured"]]
    assert traced == [5, 6, 7]


@pytest.mark.slow
def test_a_script_with_a_session_of_its_own_keeps_it(tmp_path, scripts):
    out = tmp_path / "run"
    done = execute(
        [DTPROF, "run", "--out", out, "--capture", "none", "--", sys.executable, scripts / "run_own.py", tmp_path / "mine"]
    )
    assert done.code == 0, done.err
    assert not (tmp_path / "mine").exists()
    assert sorted(p.name for p in out.glob("part*")) == ["part00000"]
    told = extra(out)
    assert (told["steps_done"], told["steps"], told["capture"]) == (4, "marked by the script", None)
    assert read_manifest(out / "manifest.json").knobs["mine"] == 1
    assert [c["name"] for c in told["collectors"]] == ["host"]


def test_the_commands_own_end_is_ours(tmp_path):
    out = tmp_path / "run"
    done = execute([DTPROF, "run", "--out", out, "--", sys.executable, "-c", "print('hello'); raise SystemExit(17)"])
    assert (done.code, done.out) == (17, "hello\n")
    assert "no process of the job loaded torch" in done.err
    assert execute([DTPROF, "run", "--out", tmp_path / "x", "--", "no-such-command"]).code == 127
    none = execute([DTPROF, "run", "--json", "--out", tmp_path / "y", "--", sys.executable, "-E", "-c", "print('hello')"])
    assert (none.code, json.loads(none.out)["run"]["recorded"]) == (0, False)
    assert "hello" in none.err and "-E" in none.err


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["plain", "loader", "accumulate", "gan", "uneven_gan", "zero", "fsdp", "compiled", "thread"])
def test_every_kind_of_loop_under_torchrun(tmp_path, scripts, kind):
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    command = [TORCHRUN, "--nproc_per_node=2", *meeting, scripts / "run_loop.py", kind, STEPS]
    out, _, _ = both(tmp_path, command)
    assert sorted(p.name for p in out.glob("part*")) == ["part00000", "part00001"]
    for rank in (0, 1):
        told = extra(out, rank)
        assert (told["steps_done"], told["failures"]) == (STEPS, [])
        assert told["launch"]["optimizers"] == {
            "plain": "per step: AdamW 1 time", "loader": "per step: SGD 1 time", "thread": "per step: AdamW 1 time",
            "accumulate": told["launch"]["optimizers"], "gan": "per step: Adam 1 time, Adam 2 1 time",
            "uneven_gan": "per step: SGD 0 to 1 time, Adam 3 times", "zero": "per step: ZeroRedundancyOptimizer 1 time",
            "fsdp": "per step: AdamW 1 time", "compiled": "per step: SGD 1 time",
        }[kind]  # fmt: skip
    if kind == "accumulate":
        # steps 1, 5 and 9
        assert extra(out)["launch"]["optimizers"] == "per step: SGD 1 time; 3 steps left out by the gradient scaler"
    if kind == "fsdp":
        (model,) = extra(out)["launch"]["fsdp"]
        assert (model["kind"], model["units"], model["mesh"]) == ("FSDP2", 4, {"shard": 2})
        manifest = read_manifest(out / "manifest.json")
        assert manifest.mesh == {"shard": 2}
        assert {"name": "shard", "axis": "shard", "ranks": [0, 1], "backend": "gloo"} in manifest.groups
    if kind == "loader":
        rows, _ = read_lines(out / "part00000" / "steps.jsonl")
        assert all(row["input_ns"] > 0 for row in rows[1:])


@pytest.mark.slow
@pytest.mark.parametrize("value", ["true", "false"])
def test_fsdp_is_edited_where_it_shards(tmp_path, scripts, value):
    command = [sys.executable, scripts / "run_ranks.py", "torchrun", 2, scripts / "run_loop.py", "fsdp", STEPS]
    out, _, _ = both(tmp_path, command, "--set", f"fsdp.reshard_after_forward={value}")
    launch = extra(out)["launch"]
    assert launch["edits"][f"fsdp.reshard_after_forward={value}"]["applied_to"] == 4
    # the root holds no parameter of its own
    assert launch["fsdp"][0]["resharding_units"] == (3 if value == "true" else 0)


@pytest.mark.slow
@pytest.mark.parametrize(("style", "conflicts"), [("slurm", 0), ("both", 1), ("none", 0)])
def test_ranks_are_right_whatever_variables_there_are(tmp_path, scripts, style, conflicts):
    out = tmp_path / "run"
    script = [scripts / "run_rank.py", 4]
    done = execute([DTPROF, "run", "--out", out, "--", sys.executable, scripts / "run_ranks.py", style, 4, *script])
    assert done.code == 0, done.err
    parts = [describe(p) for p in sorted(out.glob("part*"))]
    assert [part.rank for part in parts] == [0, 1, 2, 3]
    assert {part.extra["steps_done"] for part in parts} == {3}
    assert len({part.extra["run_key"] for part in parts}) == 1
    assert done.err.count("variables disagree on the rank") == conflicts

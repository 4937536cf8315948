"""Training under dtprof is training: the same losses to the last bit, whatever goes wrong inside dtprof."""

import json
import subprocess

import pytest

from dtprof.ingest import open_run
from dtprof.jsonl import read_lines
from dtprof.run import read_manifest
from dtprof.session.folder import describe


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """A file system of 600 KiB, or None where this user may not mount one."""
    path = tmp_path_factory.mktemp("disk")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(path)], capture_output=True)
    yield path if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def trained(request, run, scripts, tmp_path_factory, disk):
    """(ranks, folder, losses by rank and scenario)."""
    out = tmp_path_factory.mktemp(f"losses{request.param}")
    if disk is not None:
        subprocess.run(f"rm -rf {disk}/*", shell=True, check=True)
    run(request.param, [str(scripts / "losses.py"), str(out), *([str(disk)] if disk else [])])
    found = [json.loads((out / f"losses.rank{r}.json").read_text()) for r in range(request.param)]
    return request.param, out, found


SCENARIOS = {
    "measured": "plain", "hook_measured": "hook_plain", "raises_start": "plain", "raises_on_step": "plain",
    "raises_stop": "plain", "read_only": "plain", "full_disk": "plain",
}  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_losses_are_bit_identical(trained, scenario):
    ranks, _, found = trained
    if scenario == "full_disk" and scenario not in found[0]:
        pytest.skip("this user may not mount a small file system")
    for rank in range(ranks):
        assert found[rank][scenario] == found[rank][SCENARIOS[scenario]]


def test_the_losses_could_differ(trained):
    _, _, found = trained
    assert found[0]["plain"] != found[1]["plain"]
    assert found[0]["plain"] != found[0]["hook_plain"]
    assert len(set(found[0]["plain"])) == 8


@pytest.mark.parametrize("hook", ["start", "on_step", "stop"])
def test_the_collector_that_raised_is_named_and_the_others_recorded(trained, hook):
    ranks, out, _ = trained
    folder = out / f"raises_{hook}"
    states = {c["name"]: c for c in read_manifest(folder / "manifest.json").collectors}
    assert states[f"raises_{hook}"]["state"] == "off"
    assert states[f"raises_{hook}"]["failure"]["error"] == "RuntimeError: planted"
    for rank in range(ranks):
        part = folder / f"part0000{rank}"
        assert [f["name"] for f in describe(part).extra["failures"]] == [f"raises_{hook}"]
        assert (part / "trace.json.gz").exists()
        assert len(read_lines(part / "steps.jsonl")[0]) == 8
        assert [r["step"] for r in read_lines(part / "ddp.jsonl")[0] if r["type"] == "grads"] == [0, 1, 2, 3, 4, 5]


def test_a_full_disk_is_told_in_part_json_and_the_manifest(trained, disk):
    if disk is None:
        pytest.skip("this user may not mount a small file system")
    ranks, _, _ = trained
    manifest = read_manifest(disk / "run" / "manifest.json")
    assert {c["name"]: c.get("missing", "") for c in manifest.collectors}["torch_profiler"][0].startswith("trace: not written")
    for rank in range(ranks):
        part = describe(disk / "run" / f"part0000{rank}")
        assert part.extra["ended_ns"] is not None
        failed = {f["name"]: f["error"] for f in part.extra["failures"]}
        assert {"steps", "host", "ddp"} & set(failed)
        assert "No space left" in str(failed)
        assert not (disk / "run" / f"part0000{rank}" / "trace.json.gz").exists()


def test_the_jobs_own_hook_is_seen_and_left_in_place(trained):
    _, out, _ = trained
    rows, _ = read_lines(out / "hook" / "part00000" / "ddp.jsonl")
    assert [r["comm_hook"] for r in rows if r["type"] == "config" and r["comm_hook"]] == ["halve_and_sum"]


def test_the_run_opens(trained):
    ranks, out, _ = trained
    assert open_run(out / "measured").ranks == list(range(ranks))

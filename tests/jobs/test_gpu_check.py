"""What make gpu-check runs, checks and says: tried without a GPU."""

import argparse
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dtprof_sample_jobs import JOBS  # noqa: E402
from dtprof_sample_jobs.command import _job_options  # noqa: E402
from tests import gpu_check  # noqa: E402
from tests.gpu_check import Job, exercised, wrong  # noqa: E402


@pytest.fixture(scope="module")
def one_rank(run, tmp_path_factory):
    """The first job of the check, at its small size."""
    out = tmp_path_factory.mktemp("gpu_check") / "run"
    words = gpu_check.JOBS[0].command("cpu", 1, out)
    name = words.index("ddp")
    run(1, ["-m", "dtprof_sample_jobs.ddp", *words[name + 3 :]])
    return out


def test_every_job_is_run():
    assert {job.name for job in gpu_check.JOBS} == set(JOBS)


@pytest.mark.parametrize("job", gpu_check.JOBS, ids=str)
@pytest.mark.parametrize(("device", "ranks"), [("cuda", 1), ("cuda", 2), ("cpu", 1)])
def test_what_is_run_makes_sense_to_the_job(job, device, ranks, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    words = job.command(device, ranks, Path("out"))
    place = words.index(job.name)
    assert words[place + 1 : place + 3] == ["--ranks", str(ranks)]
    if not job.impossible(device, ranks):
        assert isinstance(_job_options(job.name, words[place + 3 :], ranks), argparse.Namespace)


def test_a_run_as_it_should_be_has_nothing_wrong(one_rank):
    assert list(wrong(gpu_check.JOBS[0], one_rank, "cpu", 1)) == []


def test_what_is_missing_is_said(one_rank, tmp_path):
    assert list(wrong(Job("ddp", "", ("bucket", "stage", "expert")), one_rank, "cpu", 1)) == [
        "rank 0: no event has a tag stage",
        "rank 0: no event has a tag expert",
    ]
    assert list(wrong(gpu_check.JOBS[0], one_rank, "cpu", 2)) == ["it has 1 parts, not one for each of 2 ranks"]
    assert list(wrong(gpu_check.JOBS[0], one_rank, "cuda", 1)) == ["rank 0: no kernel has a tag layer"]


def test_a_collector_that_failed_is_said(one_rank):
    path = one_rank / "part00000" / "part.json"
    text = path.read_text()
    part = json.loads(text)
    part["extra"]["collectors"][0] |= {"state": "off", "failure": {"error": "broken"}}
    path.write_text(json.dumps(part))
    try:
        (said,) = wrong(gpu_check.JOBS[0], one_rank, "cpu", 1)
    finally:
        path.write_text(text)
    assert "is off" in said
    assert "broken" in said


def test_a_report_says_what_was_exercised():
    rank = {"device": {"compute_ns": 1, "comm_kernels": 0}, "steps": [{"clock": "device"}]}
    found = dict(exercised({"ranks": [rank], "collectives": [{"transfer_ns": 1}], "own_cost": None}))
    assert [what for what, done in found.items() if done] == ["kernels recorded", "device steps on 1 ranks"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_run(capsys):
    assert gpu_check.main([]) == 1
    assert capsys.readouterr().err == "gpu-check: no CUDA device; nothing was exercised\n"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_every_job_is_run_and_checked(tmp_path, capfd, monkeypatch):
    """The first mode of each job, and the one that cannot be run here."""
    first = {job.name: job for job in reversed(gpu_check.JOBS)}
    monkeypatch.setattr(gpu_check, "JOBS", (*reversed(first.values()), gpu_check.JOBS[1]))
    code = gpu_check.main(["--device", "cpu", "--out", str(tmp_path)])
    lines = [line.strip() for line in capfd.readouterr().out.splitlines() if line.startswith(" ")]
    outcome = {line.partition("  ")[2]: line.partition("  ")[0] for line in lines}
    run = {f"{job}, 1 rank" for job in first.values()}
    assert {what for what, done in outcome.items() if done == "exercised" and ", 1 rank" in what} == run
    assert {"ddp --data-parallel", "kernels recorded", *gpu_check.ONE_RANK, *gpu_check.ELSEWHERE} <= {
        what for what, done in outcome.items() if done == "NOT exercised"
    }
    assert code == 0


def test_a_job_that_fails_is_said_and_the_others_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    jobs = (Job("ddp", "--no-such-option", ()), Job("collectives", "--groups halves", ()))
    monkeypatch.setattr(gpu_check, "JOBS", jobs)
    assert gpu_check.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    failed = [line.split("FAILED")[1].strip() for line in capsys.readouterr().out.splitlines() if "FAILED" in line]
    assert failed == ["ddp --no-such-option: exit code 3", "collectives --groups halves: exit code 3"]

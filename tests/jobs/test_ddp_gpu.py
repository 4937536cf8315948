"""The ddp job on one GPU: NCCL with one rank, and DataParallel."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import dtprof  # noqa: E402

WORDS = ["-m", "dtprof_sample_jobs.ddp", "--steps", "16", "--dim", "512", "--seq", "256", "--layers", "8"]
MODES = {
    "ddp": ["--mark-buckets"],
    "accumulate": ["--accumulate", "2", "--precision", "bf16", "--checkpointing", "selective", "--clip", "1"],
    "topk": ["--compress", "topk", "--precision", "tf32"],
    "emulated": ["--emulate", "uniform", "--inject", "slow_rank=0:10ms"],
    "data_parallel": ["--data-parallel"],
}


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
def test_a_run_on_a_gpu_opens_with_its_tags(run, tmp_path, mode):
    run(1, [*WORDS, *MODES[mode], "--out", str(tmp_path / "run")])
    opened = dtprof.open_run(tmp_path / "run")
    events = opened.table("events", 0)
    assert {"data", "forward", "backward", "optimizer"} <= set(events.text("phase"))
    assert events.is_("kind", "kernel").any()
    assert opened.manifest.mesh == {"dp": 1}

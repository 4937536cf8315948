"""Edits of the wire: a real DistributedDataParallel of one process, constructed under them."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import json, sys, tempfile
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from dtprof.edits import parse_edits
from dtprof.launch import construct
from dtprof.session import launched

with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    construct.apply(parse_edits(sys.argv[1:]))
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model.register_comm_hook(None, allreduce_hook)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    names = [hook.__name__ for hook, _ in getattr(model, "_comm_hooks", [])]
    print(json.dumps({"edits": launched.facts["edits"], "hooks": names}))
    dist.destroy_process_group()
"""


def constructed(*edits):
    done = subprocess.run([sys.executable, "-c", SCRIPT, *edits], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_gradients_travel_by_torch_s_hook_and_the_script_s_own_is_left_out():
    found = constructed("comm.dtype=fp16")
    assert found["hooks"] == ["fp16_compress_hook"]
    assert found["edits"]["comm.dtype=fp16"] == {
        "applied_to": 1, "target": "DistributedDataParallel", "before": None, "own_hook": "left out",
    }  # fmt: skip


def test_fp32_leaves_the_script_s_hook_out():
    found = constructed("comm.dtype=fp32")
    assert found["hooks"] == []
    assert found["edits"]["comm.dtype=fp32"]["applied_to"] == 1


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        (["comm.dtype=bf16"], "NCCL"),
        (["comm.powersgd_rank=2"], "several buckets"),
        (["comm.dtype=fp16", "comm.powersgd_rank=2"], "one communication hook at a time"),
    ],
)
def test_what_cannot_be_had_leaves_the_script_s_own_hook(edits, why):
    found = constructed(*edits)
    assert found["hooks"] == ["allreduce_hook"]
    for edit in edits:
        assert found["edits"][edit]["applied_to"] == 0
        assert why in found["edits"][edit]["failed"]

"""A job measured with NVML alone: python nvml_job.py OUT [SECONDS]. Prints "job done" when its loop has ended."""

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dtprof

if uuid := os.environ.get("TORCH_UUID"):
    # stands for a torch that uses its device 3
    cuda = SimpleNamespace(
        is_initialized=lambda: True, is_available=lambda: True, current_device=lambda: 3, get_device_name=lambda: "a GPU",
        get_device_properties=lambda ordinal: SimpleNamespace(uuid=uuid if ordinal == 3 else "other"),
    )  # fmt: skip
    sys.modules["torch"] = SimpleNamespace(cuda=cuda, __version__="0", version=SimpleNamespace(cuda=None))

out = Path(sys.argv[1])
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.4
asked = {"interval_s": 0.05, **json.loads(os.environ.get("NVML_OPTIONS", "{}"))}
with dtprof.profile(out, capture=None, collectors=["nvml"], options={"nvml": asked}) as prof:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.02)
        prof.step()
print("job done", flush=True)

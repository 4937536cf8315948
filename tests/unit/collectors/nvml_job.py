"""A job measured with NVML alone: python nvml_job.py OUT. Prints "job done" when its loop has ended.

It goes on until NVML_WAIT has come, and for NVML_MORE seconds more: "lines" (the default), four ticks are written or the
thread has ended; "begun", NVML is initialised; "nothing".
"""

import json
import os
import sys
import threading
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
wait = os.environ.get("NVML_WAIT", "lines")


def come():
    """Has what is waited for come?"""
    if wait == "nothing" or not any(thread.name == "dtprof-nvml" for thread in threading.enumerate()):
        return True
    if wait == "begun":
        return getattr(sys.modules.get("pynvml"), "_nvmlLib_refcount", 0) > 0
    file = out / "part00000" / "nvml.jsonl"
    return file.exists() and file.read_bytes().count(b"\n") >= 4


def steps(prof, until):
    """Steps of 20 ms until a condition holds, or for 60 s."""
    last = time.monotonic() + 60
    while not until() and time.monotonic() < last:
        time.sleep(0.02)
        prof.step()


options = {"nvml": {"interval_s": 0.05, **json.loads(os.environ.get("NVML_OPTIONS", "{}"))}}
with dtprof.profile(out, capture=None, collectors=["nvml"], options=options) as prof:
    steps(prof, come)
    enough = time.monotonic() + float(os.environ.get("NVML_MORE", "0.3"))
    steps(prof, lambda: time.monotonic() > enough)
print("job done", flush=True)

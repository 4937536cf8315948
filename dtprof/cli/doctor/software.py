"""torch, CUDA, NCCL, NVML and the tools beside them, and which of them do not go together."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtprof.cli.doctor.item import Conflict, Item, installed, numbers, pip, system_package
from dtprof.cli.doctor.probes import program_version

TRAINING, COUNTERS, TOOLS = "training", "counters", "tools"
_NVTX_RECORDED = (0, 2, 11)  # newer nvtx packages record no push/pop ranges under Nsight Systems 2022.4


def training(torch: Mapping[str, Any], nvml: Mapping[str, Any]) -> list[Item]:
    """torch and what it was built with."""
    gives = "steps, operators, memory, collectives of a training job"
    if "error" in torch:
        if torch.get("kind") == "missing":
            return [Item(TRAINING, "torch", "missing", "not installed", gives, pip("torch"))]
        return [Item(TRAINING, "torch", "unknown", str(torch["error"]), gives)]
    out = [Item(TRAINING, "torch", "ok", f"{torch['version']}, {torch['threads']} threads", gives)]
    if not torch.get("profiler"):
        out.append(Item(TRAINING, "profiler", "missing", "built without Kineto", "traces of captured steps", pip("torch")))
    else:
        found = ", ".join(torch.get("activities") or [])
        out.append(Item(TRAINING, "profiler", "ok", f"Kineto: {found}", "traces of captured steps"))
    out.append(_cuda(torch, nvml))
    nccl = torch.get("nccl_version")
    out.append(_backend("NCCL", torch.get("nccl"), nccl, "collectives between GPUs", expected=bool(torch.get("cuda"))))
    out.append(_backend("gloo", torch.get("gloo"), None, "collectives between CPUs", expected=True))
    return out


def _cuda(torch: Mapping[str, Any], nvml: Mapping[str, Any]) -> Item:
    gives = "kernels, copies, streams; the accounting of a device's time"
    built = f"CUDA {torch['cuda']}" if torch.get("cuda") else f"ROCm {torch['hip']}" if torch.get("hip") else None
    devices = torch.get("devices") or []
    if devices:
        names = ", ".join(sorted({d["name"] for d in devices}))
        return Item(TRAINING, "CUDA", "ok", f"{built}; {len(devices)} x {names}", gives)
    gpus = nvml.get("gpus") or []
    if not gpus:
        return Item(TRAINING, "CUDA", "absent", "no GPU here" + (f" (torch is built for {built})" if built else ""), gives)
    found = f"{built or 'torch is built without CUDA'}; {len(gpus)} GPUs here, and torch sees none"
    return Item(TRAINING, "CUDA", "missing", found, gives, None if built else pip("--force-reinstall", "torch"))


def _backend(name: str, there: object, version: str | None, gives: str, *, expected: bool) -> Item:
    if there:
        return Item(TRAINING, name, "ok", version or "built in", gives)
    return Item(TRAINING, name, "missing" if expected else "absent", "not in this torch", gives)


def counters(nvml: Mapping[str, Any]) -> list[Item]:
    """NVML, and whether GPU performance counters are open to this user."""
    gives = "GPU utilisation, memory, clocks, power, throttling, errors, link traffic at 1 Hz"
    kind = nvml.get("kind")
    if kind == "package":
        if not Path("/proc/driver/nvidia/version").exists():
            return [Item(COUNTERS, "NVML", "absent", "no NVIDIA driver", gives)]
        return [Item(COUNTERS, "NVML", "missing", "nvidia-ml-py is not installed", gives, pip("nvidia-ml-py"))]
    if kind == "driver":
        return [Item(COUNTERS, "NVML", "absent", f"no NVIDIA driver ({nvml['error']})", gives)]
    if "error" in nvml:
        return [Item(COUNTERS, "NVML", "unknown", str(nvml["error"]), gives)]
    refused = sorted({name for gpu in nvml["gpus"] for name in gpu["refused"]})
    found = f"driver {nvml['driver']}, CUDA {nvml['cuda']} at most, {len(nvml['gpus'])} GPUs"
    found += f"; not: {', '.join(refused)}" if refused else ""
    out = [Item(COUNTERS, "NVML", "limited" if refused else "ok", found, gives)]
    if restricted := _admin_only():
        out.append(restricted)
    return out


def _admin_only() -> Item | None:
    """NVIDIA's driver may keep performance counters for administrators (ERR_NVGPUCTRPERM)."""
    try:
        text = Path("/proc/driver/nvidia/params").read_text()
    except OSError:
        return None
    if "RmProfilingAdminOnly: 1" not in text or os.geteuid() == 0:
        return None
    option = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    get = f"echo {option} > /etc/modprobe.d/nvidia-profiling.conf   # as root, then restart"
    return Item(COUNTERS, "GPU counters", "limited", "for administrators only", "metrics inside kernels (nsys, ncu)", get)


def tools() -> list[Item]:
    """Programs and packages beside torch."""
    compiler = next((name for name in ("gcc", "cc", "clang") if program_version(name)), None)
    scanner = importlib.util.find_spec("dtprof.ingest.kineto._scan") is not None
    source = Path(__file__).parents[3] / "pyproject.toml"
    rebuild = "make setup" if source.exists() else pip("--force-reinstall", "--no-deps", "--no-binary", "dtprof", "dtprof")
    return [
        _package("nvtx", "nvtx", "ranges of dtprof.annotate in Nsight Systems"),
        _program("nsys", "nsight-systems", "nsight-systems", "timelines of Nsight Systems; turning .nsys-rep into SQLite"),
        _program("perf", "linux-perf", "perf", "where processor time goes below Python"),
        _lab(),
        _program(compiler or "gcc", "gcc libc6-dev python3-dev", "gcc python3-devel", "the C trace scanner; torch.compile"),
        Item(
            TOOLS, "C scanner", "ok" if scanner else "missing", "built" if scanner else "not built: traces are read in Python",
            "reading traces several times faster", None if scanner else rebuild,
        ),
        _package("streamlit", "streamlit", "the web page: dtprof dashboard"),
    ]  # fmt: skip


def _lab() -> Item:
    """The lab makes network namespaces, which takes root."""
    item = _program("ip", "iproute2", "iproute", "networks with a rate and a delay on one machine: dtprof job --lab")
    if item.state == "ok" and os.geteuid() != 0:
        return replace(
            item,
            state="limited",
            found=f"{item.found}; namespaces are for root only",
            get="sudo dtprof job ddp --lab rate=1gbit",
        )
    return item


def _package(name: str, package: str, gives: str) -> Item:
    found = installed(package)
    return Item(TOOLS, name, "ok" if found else "missing", found or "not installed", gives, None if found else pip(package))


def _program(name: str, debian: str, fedora: str, gives: str) -> Item:
    found = program_version(name)
    if found is None:
        return Item(TOOLS, name, "missing", "not installed", gives, system_package(debian, fedora))
    return Item(TOOLS, name, "ok", found if found != "?" else "there", gives)


def conflicts(torch: Mapping[str, Any], nvml: Mapping[str, Any], environment: Mapping[str, str]) -> list[Conflict]:
    """What is installed or set, and spoils a measurement."""
    out = []
    nvtx, nsys = installed("nvtx"), program_version("nsys")
    if nvtx and nsys and numbers(nvtx) > _NVTX_RECORDED and numbers(nsys)[:2] == (2022, 4):
        what = f"nvtx {nvtx} with Nsight Systems {nsys}"
        out.append(Conflict(what, "push/pop ranges are not recorded", pip("nvtx==0.2.11")))
    if installed("pynvml") and installed("nvidia-ml-py"):
        what = "pynvml beside nvidia-ml-py"
        effect = "two packages with one module; the deprecated one may win"
        out.append(Conflict(what, effect, pip("--force-reinstall", "nvidia-ml-py")))
    built, most = numbers(str(torch.get("cuda") or "")), numbers(str(nvml.get("cuda") or ""))
    if built and most and built[0] > most[0]:
        what = f"torch is built for CUDA {torch['cuda']}, the driver goes up to {nvml['cuda']}"
        out.append(Conflict(what, "kernels do not start", "install a newer driver, or a torch for an older CUDA"))
    if environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        effect = "every launch waits for its kernel: no overlap, and no step as it would be without"
        out.append(Conflict("CUDA_LAUNCH_BLOCKING=1", effect, "unset CUDA_LAUNCH_BLOCKING"))
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if environment.get(name) == "0":
            effect = "the flight recorder is off: group and size of gloo's collectives are not known"
            out.append(Conflict(f"{name}=0", effect, f"unset {name}"))
    return out

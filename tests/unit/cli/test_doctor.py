"""``dtprof doctor``: says what is here, what is missing and how to get it, and never fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dtprof.cli import main
from dtprof.cli.doctor import examine, machine, probes, software, topology
from dtprof.cli.doctor.item import Item, guarded, numbers, pip
from dtprof.cli.doctor.show import expected_of, lines

TORCH = {
    "version": "2.13.0", "cuda": "12.8", "hip": None, "distributed": True, "nccl": True, "gloo": True, "profiler": True,
    "activities": ["CPU", "CUDA"], "threads": 8, "devices": [{"name": "NVIDIA H100"}] * 2, "nccl_version": "2.27.3",
}  # fmt: skip
GPU = {"index": 0, "name": "NVIDIA H100", "memory": 80 << 30, "bus": "00000000:1B:00.0", "numa_node": 0, "nvlinks": 18,
       "mig": False, "refused": {}}  # fmt: skip
NVML = {"driver": "570.1", "cuda": "12.8", "gpus": [GPU, {**GPU, "index": 1}], "pairs": [{"gpus": [0, 1], "by": "NVLink"}]}
NO_DRIVER = {"error": "NVML Shared Library Not Found", "kind": "driver"}
STATES = {"ok", "limited", "missing", "absent", "unknown"}


@pytest.fixture
def quick(monkeypatch):
    """Without the processes that ask torch and NVML."""
    monkeypatch.setattr(probes, "torch", lambda: TORCH)
    monkeypatch.setattr(probes, "nvml", lambda: NVML)


def by_name(items):
    return {item.name: item for item in items}


def test_json_has_everything(quick, capsys, tmp_path):
    assert main(["doctor", "--json", "--out", str(tmp_path / "runs")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert {c["state"] for c in found["checks"]} <= STATES
    names = {c["name"] for c in found["checks"]}
    assert {"torch", "CUDA", "NCCL", "NVML", "nvtx", "nsys", "ptrace", "perf events", "schedstat", "runs", "streamlit"} <= names
    assert all(c["get"] for c in found["checks"] if c["state"] == "missing" and c["section"] == "tools")
    assert found["versions"]["dtprof"]
    assert found["topology"]["cpu"]["threads"] >= 1
    assert found["topology"]["gpu_pairs"] == NVML["pairs"]
    assert not (tmp_path / "runs").exists()


def test_the_text_fits_a_terminal_of_80_columns_and_commands_stay_whole(quick, tmp_path):
    found = examine(tmp_path)
    for line in lines(found, 80):
        text = str(line)
        assert len(text) <= 80 or "get it: " in text or "mend it: " in text, text
    text = "\n".join(map(str, lines(found, 80)))
    assert "between GPUs (all pairs): NVLink" in text
    assert "18 NVLinks" in text
    for check in found["checks"]:
        assert check["get"] is None or check["get"] in text


def test_it_really_asks_torch_here():
    pytest.importorskip("torch")
    import torch

    found = probes.torch()
    assert found["version"] == str(torch.__version__)
    assert found["gloo"] is True


@pytest.mark.parametrize(
    "code", ["raise SystemExit('broken torch')", "import os; os.abort()", "raise ImportError('libcudart')"]
)
def test_a_broken_torch_is_named(tmp_path, monkeypatch, code):
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    item = by_name(software.training(probes.torch(), NO_DRIVER))["torch"]
    assert item.state == "unknown"
    assert item.found


def test_without_torch_the_command_is_given(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (item,) = software.training(probes.torch(), NO_DRIVER)
    assert (item.state, item.get) == ("missing", pip("torch"))
    assert item.get.startswith(sys.executable)


def test_what_hangs_is_left_alone(monkeypatch):
    code, out, _ = probes.limited([sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"], 2.0)
    assert (code, out) == (None, "x\n")


def nvml_of(tmp_path, monkeypatch, plan=""):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fake NVML")
    source = Path(__file__).parents[1] / "collectors" / "fake_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("FAKE_NVML", plan)
    return probes.nvml()


def test_gpus_and_their_links_through_the_real_pynvml(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    found = nvml_of(tmp_path, monkeypatch)
    assert (found["driver"], found["cuda"]) == ("570.00", "12.8")
    assert [(g["name"], g["bus"], g["nvlinks"], g["refused"]) for g in found["gpus"]] == [
        ("NVIDIA H100", "00000000:1B:00.0", 18, {}),
        ("NVIDIA H100", "00000000:1C:00.0", 18, {}),
    ]
    assert found["pairs"] == [{"gpus": [0, 1], "by": "NVLink"}]
    assert by_name(software.counters(found))["NVML"].state == "ok"


@pytest.mark.parametrize(
    ("plan", "pair"),
    [("nvmlDeviceGetP2PStatus=3@1", "NODE"), ("nvmlDeviceGetP2PStatus=3@1,nvmlDeviceGetTopologyCommonAncestor=3@1", "unknown")],
)
def test_pairs_without_nvlink(tmp_path, monkeypatch, plan, pair):
    pytest.importorskip("pynvml")
    assert nvml_of(tmp_path, monkeypatch, plan)["pairs"] == [{"gpus": [0, 1], "by": pair}]


def test_counters_that_a_device_refuses_are_named(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    found = nvml_of(tmp_path, monkeypatch, "nvmlDeviceGetPowerUsage=4@1,nvmlDeviceGetNvLinkState=3@1")
    item = by_name(software.counters(found))["NVML"]
    assert item.state == "limited"
    assert item.found.endswith("not: power")
    assert [g["nvlinks"] for g in found["gpus"]] == [0, 0]


def test_nvml_that_hangs_is_named(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setattr(probes, "NVML_S", 3.0)
    found = nvml_of(tmp_path, monkeypatch, "nvmlInitWithFlags=hang@1")
    assert found == {"error": "no answer within 3 s", "kind": "hang"}
    assert by_name(software.counters(found))["NVML"].state == "unknown"


@pytest.mark.parametrize(
    ("torch", "nvml", "state"),
    [
        (TORCH, NVML, "ok"),
        ({**TORCH, "devices": []}, NVML, "missing"),
        ({**TORCH, "devices": [], "cuda": None}, NVML, "missing"),
        ({**TORCH, "devices": []}, NO_DRIVER, "absent"),
    ],
)
def test_cuda(torch, nvml, state):
    item = by_name(software.training(torch, nvml))["CUDA"]
    assert item.state == state
    assert bool(item.get) == (state == "missing" and torch["cuda"] is None)


@pytest.mark.parametrize(
    ("nvtx", "nsys", "conflict"),
    [("0.2.17", "2022.4.2.1", True), ("0.2.12", "2022.4.2.1", True), ("0.2.11", "2022.4.2.1", False),
     ("0.2.17", "2025.1.1", False), (None, "2022.4.2.1", False), ("0.2.17", None, False)],
)  # fmt: skip
def test_nvtx_and_nsys_that_do_not_go_together(monkeypatch, nvtx, nsys, conflict):
    monkeypatch.setattr(software, "installed", lambda package: nvtx if package == "nvtx" else None)
    monkeypatch.setattr(software, "program_version", lambda name: nsys)
    found = software.conflicts(TORCH, NVML, {})
    assert len(found) == conflict
    assert all("nvtx==0.2.11" in c.get for c in found)


def test_other_conflicts(monkeypatch):
    monkeypatch.setattr(software, "installed", lambda package: "13.0")
    monkeypatch.setattr(software, "program_version", lambda name: None)
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "TORCH_FR_BUFFER_SIZE": "0"}
    found = software.conflicts({**TORCH, "cuda": "13.0"}, NVML, environment)
    said = " / ".join(c.what for c in found)
    assert said == (
        "pynvml beside nvidia-ml-py / torch is built for CUDA 13.0, the driver goes up to 12.8 / "
        "CUDA_LAUNCH_BLOCKING=1 / TORCH_FR_BUFFER_SIZE=0"
    )


def test_permissions_are_tried_here():
    (counted,) = machine.schedstat()
    (traced,) = machine.ptrace()
    (counting,) = machine.perf()
    (shared,) = machine.shared_memory()
    for item in (counted, traced, counting, shared):
        assert item.state in STATES - {"absent"}
        assert item.found


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path):
    (item,) = machine.disk(tmp_path / "a" / "b")
    assert item.found.startswith(f"{tmp_path}: ")
    assert "MB/s" in item.found
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    def refuse(folder, size):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine, "_write_speed", refuse)
    (item,) = machine.disk(tmp_path)
    assert (item.state, "Permission denied" in item.found, "--out" in item.get) == ("missing", True, True)


def test_a_check_that_fails_is_an_item():
    (item,) = guarded("disk", "runs", lambda: 1 / 0)
    assert (item.state, "ZeroDivisionError" in item.found) == ("unknown", True)


def test_it_survives_everything_failing_at_once(monkeypatch, capsys):
    def fail(*_, **__):
        raise RuntimeError("no such luck")

    for module, names in (
        (probes, ("torch", "nvml")), (software, ("training", "counters", "tools", "conflicts")),
        (machine, ("schedstat", "perf", "ptrace", "shared_memory", "disk")),
    ):  # fmt: skip
        for name in names:
            monkeypatch.setattr(module, name, fail)
    assert main(["doctor"]) == 0
    assert main(["doctor", "--json"]) == 0
    assert "no such luck" in capsys.readouterr().out


def machine_of(root):
    """A made-up machine: two sockets of two cores with two threads, two nodes, limits in the control group above."""

    def write(path, text):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")

    for thread in range(8):
        write(f"sys/devices/system/cpu/cpu{thread}/topology/physical_package_id", thread % 4 // 2)
        write(f"sys/devices/system/cpu/cpu{thread}/topology/core_id", thread % 2)
    for node in range(2):
        write(f"sys/devices/system/node/node{node}/cpulist", f"{node * 2}-{node * 2 + 1}")
        write(f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:       1024 kB")
    write("proc/cpuinfo", "processor : 0\nmodel name : Some Processor")
    write("proc/meminfo", "MemTotal:  2048 kB")
    write("sys/class/net/lo/operstate", "up")
    write("sys/class/net/eth0/operstate", "up")
    write("sys/class/net/eth0/speed", "100000")
    write("sys/class/net/eth0/device/vendor", "0x15b3")
    write("sys/class/net/bond0/operstate", "up")
    write("sys/class/net/bond0/speed", "-1")
    write("sys/class/net/eth1/operstate", "down")
    write("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)")
    write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    write("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
    return write


def test_topology(tmp_path):
    machine_of(tmp_path)
    found = topology.of_machine(NVML, tmp_path)
    usable = len(os.sched_getaffinity(0))
    assert found["cpu"] == {"model": "Some Processor", "sockets": 2, "cores": 4, "threads": 8, "usable": usable}
    assert found["memory_bytes"] == 2 << 20
    assert found["numa"][1] == {"node": 1, "cpus": "2-3", "memory_bytes": 1 << 20}
    assert found["network"] == [
        {"name": "bond0", "kind": "ethernet", "mbit_s": None, "physical": False},
        {"name": "eth0", "kind": "ethernet", "mbit_s": 100000, "physical": True},
        {"name": "mlx5_0:1", "kind": "infiniband", "mbit_s": 400000, "physical": True},
    ]
    assert found["limits"] == {"cores": None, "memory_bytes": None}


def test_limits_of_a_control_group_of_version_2_and_above_it(tmp_path):
    write = machine_of(tmp_path)
    write("proc/self/cgroup", "0::/job/step")
    write("sys/fs/cgroup/job/cpu.max", "150000 100000")
    write("sys/fs/cgroup/job/step/cpu.max", "max 100000")
    write("sys/fs/cgroup/job/step/memory.max", str(4 << 30))
    write("sys/fs/cgroup/memory.max", "max")
    assert topology.limits(tmp_path) == {"cores": 1.5, "memory_bytes": 4 << 30}


def test_limits_of_version_1_seen_from_inside_a_container(tmp_path):
    write = machine_of(tmp_path)
    write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc")
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000")
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(1 << 30))
    assert topology.limits(tmp_path) == {"cores": 2.0, "memory_bytes": 1 << 30}


def test_an_empty_machine_is_told_as_unknown(tmp_path):
    found = topology.of_machine({}, tmp_path)
    assert (found["cpu"]["model"], found["cpu"]["sockets"], found["memory_bytes"]) == (None, None, None)
    assert found["numa"] == found["network"] == found["gpus"] == []


@pytest.mark.parametrize(
    ("text", "expected"), [("0.2.17", (0, 2, 17)), ("12.8+cu1", (12, 8)), ("", ()), ("2022.4.2.1", (2022, 4, 2, 1))]
)
def test_versions_as_numbers(text, expected):
    assert numbers(text) == expected


def test_items_are_plain():
    assert Item("s", "n", "ok", "f", "g").get is None


def test_a_folder_that_may_not_even_be_looked_into_is_named(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(machine.Path, "is_dir", refuse)
    (item,) = machine.disk(tmp_path / "closed" / "runs")
    assert (item.state, "Permission denied" in item.found) == ("missing", True)


@pytest.mark.parametrize(("user", "state"), [(0, "ok"), (1000, "limited")])
def test_the_lab_is_for_root(monkeypatch, user, state):
    monkeypatch.setattr(software, "program_version", lambda name: "6.1")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert by_name(software.tools())["ip"].state == state


def test_what_a_gpu_should_give_stands_beside_it():
    told = expected_of("NVIDIA H100 80GB HBM3", 18)
    assert told == "; at best 989 TFLOP/s in bf16, memory 3,350 GB/s, 450 GB/s to its peers"
    assert expected_of("NVIDIA H100 80GB HBM3", 16).endswith("over 18 NVLinks, of which 2 are down")
    assert "125 TFLOP/s in fp16" in expected_of("Tesla V100-SXM2-16GB", 6)
    assert "peers" not in expected_of("Tesla T4", 0)
    assert expected_of("a GPU of tomorrow", 4) == ""

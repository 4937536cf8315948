"""NVML through the real pynvml, above a small fake library: what it gives, and that nothing it does reaches the job."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dtprof
from dtprof_collectors.nvml import NvmlCollector, NvmlLine, sample_rows
from dtprof_collectors.nvml_devices import local_rank, visible_devices

HERE = Path(__file__).parent
FIRST, SECOND = "GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-22222222-aaaa-bbbb-cccc-000000000002"
SLICE, SLICE_2 = "MIG-33333333-aaaa-bbbb-cccc-000000000003", "MIG-44444444-aaaa-bbbb-cccc-000000000004"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The folder of the fake libnvidia-ml.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fake NVML")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(HERE / "fake_nvml.c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def job(library, tmp_path):
    """``job(plan, **environment)``: run the job; its end, and what it recorded."""

    def run(plan="", *, path=library, **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "CUDA_DEVICE_ORDER")}
        env = {**clean, "FAKE_NVML": plan, "LD_LIBRARY_PATH": str(path), **environment}
        command = [sys.executable, str(HERE / "nvml_job.py"), str(tmp_path / "run")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        return Outcome(done, tmp_path / "run")

    return run


class Outcome:
    """A job's end, and its recording."""

    def __init__(self, done, folder):
        assert done.returncode == 0, done.stderr
        assert done.stdout == "job done\n"
        assert done.stderr == "", "nothing of ours is printed into the job's log"
        part = json.loads((folder / "part00000" / "part.json").read_text())
        assert part["extra"]["failures"] == []
        (state,) = part["extra"]["collectors"]
        self.facts, self.missing = state["facts"], state.get("missing", [])
        self.samples = dtprof.open_run(folder).table("samples", 0)

    def values(self, metric):
        return self.samples["value"][self.samples.is_("metric", metric)].tolist()

    def unit(self, metric):
        return {u for u, m in zip(self.samples.text("unit"), self.samples.text("metric"), strict=True) if m == metric}


def test_everything_that_the_device_gives(job):
    got = job()
    constant = {
        "gpu_utilization": (90, "%"), "memory_utilization": (40, "%"), "memory_used": (20 << 30, "bytes"),
        "sm_clock": (1980, "MHz"), "memory_clock": (2619, "MHz"), "power_draw": (351.5, "W"), "temperature": (61, "C"),
        "ecc_corrected": (3, "errors"), "ecc_uncorrected": (0, "errors"), "nvlink_crc_flit": (7, "errors"),
        "nvlink_replay": (1, "errors"), "pcie_tx": (1e6, "bytes/s"), "pcie_rx": (2e6, "bytes/s"), "pcie_replay": (2, "errors"),
    }  # fmt: skip
    for metric, (value, unit) in constant.items():
        assert set(got.values(metric)) == {value}, metric
        assert got.unit(metric) == {unit}
    assert len(got.values("sm_clock")) > 2
    assert got.missing == []
    assert got.values("nvlink_crc_data") == []
    assert set(got.samples["device"].tolist()) == {0}
    facts = {"device": "NVIDIA H100", "uuid": FIRST, "nvml_index": 0, "ordinal": 0, "driver": "570.00", "power_limit_w": 700.0}
    assert {key: got.facts[key] for key in facts} == facts


def test_throttling_is_told_by_reason_and_idle_is_none(job):
    got = job()
    assert set(got.values("throttle_reasons")) == {0, 2}
    assert got.values("throttle_reasons")[:2] == [0, 2]
    assert got.values("throttle_hw_thermal_slowdown")[:2] == [0, 1]
    assert got.values("throttle_sw_power_cap")[:2] == [0, 1]
    assert got.values("throttle_sync_boost") == []


def test_link_traffic_is_a_rate_over_the_time_between_ticks():
    def line(ts, tx, device=0):
        return NvmlLine(ts=ts, device=device, values={"nvlink_tx_bytes": tx})

    lines = [line(0, 100), line(2 * 10**9, 5100), line(3 * 10**9, 50), line(4 * 10**9, 60, device=1)]
    assert [(r["ts"], r["metric"], r["value"]) for r in sample_rows(lines)] == [(2 * 10**9, "nvlink_tx", 2500.0)]


def test_link_traffic_of_all_links_in_bytes(job):
    got = job()
    tx, rx = got.values("nvlink_tx"), got.values("nvlink_rx")
    assert len(tx) > 1
    assert all(r == pytest.approx(2 * t) for t, r in zip(tx, rx, strict=True))


@pytest.mark.parametrize(
    ("environment", "uuid", "ordinal"),
    [
        ({}, FIRST, 0),
        ({"LOCAL_RANK": "1"}, SECOND, 1),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "LOCAL_RANK": "0"}, SECOND, 0),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "LOCAL_RANK": "1"}, FIRST, 1),
        ({"CUDA_VISIBLE_DEVICES": "1", "LOCAL_RANK": "5"}, SECOND, 0),
        ({"CUDA_VISIBLE_DEVICES": SECOND}, SECOND, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2222"}, SECOND, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,nothing,1", "LOCAL_RANK": "0"}, FIRST, 0),
        ({"CUDA_VISIBLE_DEVICES": "1,0", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, FIRST, 1),
        ({"NVML_OPTIONS": json.dumps({"device": SECOND})}, SECOND, -1),
    ],
)
def test_the_device_is_the_one_that_cuda_would_take(job, environment, uuid, ordinal):
    got = job(**environment)
    assert (got.facts["uuid"], got.facts["ordinal"]) == (uuid, ordinal)
    assert set(got.values("gpu_utilization")) == {90 if uuid == FIRST else 91}
    assert set(got.samples["device"].tolist()) == {ordinal}


@pytest.mark.parametrize("entry", [SLICE_2, "MIG-4444", f"MIG-{SECOND}/8/0", "1"])
def test_a_slice_has_its_own_memory_and_its_boards_clocks(job, entry):
    got = job(CUDA_VISIBLE_DEVICES=entry, FAKE_NVML_MIG="1")
    assert got.facts["uuid"] == (SLICE if entry == "1" else SLICE_2)
    assert got.facts["mig"] is True
    assert got.facts["nvml_index"] == 1
    assert set(got.values("memory_used")) == {5 << 30}
    assert set(got.values("sm_clock")) == {1980}
    assert got.values("gpu_utilization") == []
    assert got.facts["unsupported"] == ["utilization"]
    assert got.missing == []


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "no device is visible"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "no device is visible"),
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, "no device is visible"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "there is no device 7"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-9"}, "GPU-9 is no device of this machine"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "2"}, "local rank 2, and 2 devices are visible"),
        ({"FAKE_NVML_MODELS": "1"}, "GPUs differ in model"),
        ({"NVML_OPTIONS": '{"device": "GPU-9"}'}, "names no device"),
    ],
)
def test_a_device_that_cannot_be_told_is_not_guessed(job, environment, why):
    got = job(**environment, NVML_WAIT="begun")
    assert len(got.samples) == 0
    (missing,) = got.missing
    assert why in missing


def test_numbers_count_among_unlike_gpus_when_cuda_is_told_to_count_as_nvml_does(job):
    assert job(FAKE_NVML_MODELS="1", CUDA_DEVICE_ORDER="PCI_BUS_ID", LOCAL_RANK="1").facts["uuid"] == SECOND


@pytest.mark.parametrize("uuid", [SECOND, SECOND.removeprefix("GPU-")])
def test_once_torch_uses_a_device_its_uuid_counts(job, uuid):
    got = job(CUDA_VISIBLE_DEVICES="0", TORCH_UUID=uuid)
    assert (got.facts["uuid"], got.facts["ordinal"]) == (SECOND, 3)
    assert got.facts["chosen_by"] == "the UUID of torch's current device"
    assert got.values("gpu_utilization")[-1] == 91
    assert got.samples["device"].tolist()[-1] == 3


def test_values_that_are_not_available_are_left_out(job):
    got = job("nvmlDeviceGetMemoryInfo=na@1,nvmlDeviceGetClockInfo=na@1")
    assert got.values("memory_used") == got.values("sm_clock") == []
    assert set(got.values("power_draw")) == {351.5}


def test_what_a_device_does_not_support_is_a_fact_and_nothing_missing(job):
    got = job("nvmlDeviceGetTotalEccErrors=3@1,nvmlDeviceGetFieldValues=3@1,nvmlDeviceGetPcieReplayCounter=13@1")
    assert got.facts["unsupported"] == ["ECC errors", "NVLink errors", "NVLink traffic", "PCIe replays"]
    assert got.missing == []
    assert set(got.values("temperature")) == {61}


def test_a_reading_without_permission_is_named(job):
    (missing,) = job("nvmlDeviceGetPowerUsage=4@1").missing
    assert missing == "GPU counters: power: NVML failed (Insufficient Permissions); not recorded from there on"


def test_one_failure_costs_one_value(job):
    got = job("nvmlDeviceGetTemperature=10@2-2")
    assert len(got.values("temperature")) == len(got.values("power_draw")) - 1
    assert got.missing == []


def test_a_device_that_is_lost_half_way_ends_the_counters(job):
    functions = [
        "GetUtilizationRates", "GetMemoryInfo", "GetClockInfo", "GetPowerUsage", "GetTemperature", "GetTotalEccErrors",
        "GetCurrentClocksEventReasons", "GetPcieThroughput", "GetPcieReplayCounter", "GetFieldValues",
    ]  # fmt: skip
    got = job(",".join(f"nvmlDevice{name}=15@4" for name in functions))
    assert len(got.values("temperature")) == 3
    assert "NVML gives nothing more: no GPU counters from there on" in got.missing
    assert "GPU counters: temperature: NVML failed (GPU is lost); not recorded from there on" in got.missing


@pytest.mark.parametrize(("code", "words"), [(9, "Driver Not Loaded"), (4, "Insufficient Permissions"), (18, "mismatch")])
def test_nvml_that_does_not_begin_is_named(job, code, words):
    got = job(f"nvmlInitWithFlags={code}@1")
    assert len(got.samples) == 0
    assert words in got.missing[0]


@pytest.mark.parametrize(
    ("function", "wait"),
    [("nvmlInitWithFlags", "nothing"), ("nvmlDeviceGetCount_v2", "begun"), ("nvmlDeviceGetPowerUsage", "begun"),
     ("nvmlShutdown", "lines")],
)  # fmt: skip
def test_a_hang_in_nvml_does_not_hold_the_job(job, function, wait):
    got = job(f"{function}=hang@1", NVML_WAIT=wait, NVML_MORE="2")
    assert "NVML did not answer as the session ended: no GPU counters from there on" in got.missing


def test_what_was_read_before_a_hang_is_kept(job):
    got = job("nvmlDeviceGetTemperature=hang@5")
    assert len(got.values("temperature")) == 4
    assert "NVML did not answer as the session ended: no GPU counters from there on" in got.missing


def test_nvml_is_closed_again(job, tmp_path):
    job(FAKE_NVML_SHUTDOWN=str(tmp_path / "closed"))
    assert (tmp_path / "closed").exists()


def test_a_machine_without_a_driver_lacks_nothing(job, tmp_path):
    got = job(path=tmp_path)
    if "device" in got.facts:
        pytest.skip("this machine has a driver")
    assert got.facts == {"nvml": "no NVIDIA driver on this machine"}
    assert got.missing == []


def test_a_library_that_is_none_is_a_machine_without_a_driver(job, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"\x7fELF no library")
    got = job(path=tmp_path)
    assert "device" in got.facts or got.facts == {"nvml": "no NVIDIA driver on this machine"}


def test_without_pynvml_the_install_command_is_given(job, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('no pynvml')")
    got = job(PYTHONPATH=str(tmp_path))
    assert got.missing == ["GPU counters: RuntimeError: nvidia-ml-py is not installed; pip install nvidia-ml-py"]


def test_torn_lines_are_counted(tmp_path):
    good, far = '{"ts":1,"device":0,"values":{"sm_clock":5}}', f'{{"ts":{2**70},"device":0,"values":{{}}}}'
    (tmp_path / "nvml.jsonl").write_text("\n".join([good, '{"ts":2,"dev', '{"ts":1,"values":[]}', far, ""]))
    tables = NvmlCollector().tables(tmp_path)
    assert tables["samples"].row(0) == {"ts": 1, "metric": "sm_clock", "value": 5.0, "unit": "MHz", "device": 0}
    assert tables["quality"].row(0)["count"] == 3


@pytest.mark.parametrize(
    ("text", "entries"),
    [(None, None), ("", []), ("0, 2", ["0", "2"]), ("0,-1,1", ["0"]), ("NoDevFiles", []), ("1,x,0", ["1"]), ("1,1", []),
     ("MIG-GPU-1/3/0,GPU-a", ["MIG-GPU-1/3/0", "GPU-a"])],
)  # fmt: skip
def test_visible_devices(text, entries):
    assert visible_devices(text) == entries


def test_local_rank():
    assert local_rank({}) is None
    assert local_rank({"LOCAL_RANK": "3", "SLURM_LOCALID": "1"}) == 3
    assert local_rank({"LOCAL_RANK": "x", "SLURM_LOCALID": "1"}) == 1

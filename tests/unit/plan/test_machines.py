"""What people write for a GPU and for links."""

import pytest

from dtprof.catalogue.hardware import GPUS, gpu_of
from dtprof.plan.machines import clock_called, gpu_called, memory_called, node_gb_s


@pytest.mark.parametrize(
    ("text", "name", "gigabytes"),
    [
        ("a100_80gb", "A100 SXM 80GB", 80),
        ("a100_40gb", "A100 SXM 40GB", 40),
        ("A100-SXM4-80GB", "A100 SXM 80GB", 80),
        ("A100 SXM 80GB (Selene)", "A100 SXM 80GB", 80),
        ("A100 80GB DGX", "A100 SXM 80GB", 80),
        ("A100 80G", "A100 SXM 80GB", 80),
        ("A100 (DGX/8-GPU node)", "A100 SXM 40GB", 40),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 80),
        ("H100 80G", "H100 SXM", 80),
        ("h100_80gb", "H100 SXM", 80),
        ("H100 (doc: DGX-H100)", "H100 SXM", 80),
        ("H100 SXM 80GB (HF cluster, from memory)", "H100 SXM", 80),
        ("H100 SXM 96GB HBM2e 2.4TB/s 500W", "H100 SXM", 96),
        ("NVIDIA H100 PCIe", "H100 PCIe", 80),
        ("H200 SXM", "H200 SXM", 141),
        ("DGX-GB300", "GB300", 288),
        ("DGX-GB200", "GB200", 186),
        ("DGX-B300", "B300 SXM", 288),
        ("B200", "B200 SXM", 180),
        ("GH200 96GB", "GH200", 96),
        ("V100-SXM2-16GB (hybrid cube mesh NV1/NV2)", "V100 SXM2", 16),
        ("V100 32GB DGX-1", "V100 SXM2", 32),
        ("MI300X", "MI300X", 192),
        ("AMD Instinct MI325X", "MI325X", 256),
        ("mi355x", "MI355X", 288),
        ("L40S", "L40S", 48),
    ],
)
def test_gpus_as_tables_spell_them(text, name, gigabytes):
    gpu = gpu_called(text)
    assert gpu.name == name
    assert memory_called(text, gpu) == gigabytes * 10**9


def test_names_of_drivers_mean_what_the_catalogue_says():
    for name in (
        "NVIDIA H100 80GB HBM3",
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100-SXM4-40GB",
        "Tesla V100-SXM2-32GB",
        "NVIDIA L4",
    ):
        assert gpu_called(name) == gpu_of(name)
    assert all(gpu_called(gpu.name) == gpu for gpu in GPUS)


def test_nobody_calls_a_gpu_so():
    assert gpu_called("not stated in doc") is None
    assert gpu_called("") is None
    assert gpu_called("TPU v4") is None


def test_memory_and_power_that_a_description_states():
    gpu = gpu_called("H100 SXM 96GB HBM2e 2.4TB/s 500W")
    assert gpu.memory_gb_s == 2400
    assert clock_called("H100 SXM 96GB HBM2e 2.4TB/s 500W", gpu) == pytest.approx((500 / 700) ** (1 / 3))
    assert clock_called("H100 SXM", gpu) == 1.0
    assert clock_called("H100 at 900W", gpu) == 1.0


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("8x200Gbps HDR IB/node", 200.0),
        ("1600Gbps/node RoCE", 200.0),
        ("4x100Gb RoCE/node", 50.0),
        ("1x100Gbps EDR IB/node", 12.5),
        ("400Gbps/GPU RDMA", 400.0),
        ("400Gbps/GPU CX-7", 400.0),
        ("400Gbps/node", 50.0),
        ("3.2 Tbps", 400.0),
        ("50 GB/s", 50.0),
        ("8x NDR", 400.0),
        ("InfiniBand HDR", 25.0),
        ("EFA (from memory)", None),
        ("", None),
    ],
)
def test_links_out_of_a_node(text, rate):
    assert node_gb_s(text, 8) == rate

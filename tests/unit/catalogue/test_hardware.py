"""The catalogue: names that drivers give find their GPU, and the figures agree with each other and with what is known."""

import csv

import pytest

from dtprof.catalogue.hardware import GPUS, PCIE_X16_GB_S, gpu_of, network_of

NAMES = {
    "Tesla V100-SXM2-16GB": "V100 SXM2",
    "Tesla V100-PCIE-32GB": "V100 PCIe",
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB",
    "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA A100-PG509-200": "A100 SXM 40GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB",
    "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200 SXM",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA B200": "B200 SXM",
    "NVIDIA GB200": "GB200",
    "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S",
    "Tesla T4": "T4",
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "AMD Instinct MI300X": "MI300X",
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names_of_drivers_find_their_gpu(name, expected):
    assert gpu_of(name).name == expected


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40",
        "NVIDIA A10G",
        "NVIDIA RTX A4000",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA H200 NVL",
        "cpu: Xeon",
        "",
        None,
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "GRID A100-SXM4-40GB",
    ],
)
def test_what_is_not_listed_is_not_guessed(name):
    assert gpu_of(name) is None


def test_every_entry_names_its_source_once():
    assert len({g.name for g in GPUS}) == len(GPUS)
    assert all(g.source and g.tflops and g.memory_gb and g.pcie in PCIE_X16_GB_S for g in GPUS)


def test_links_add_up_to_what_the_vendors_print_for_both_directions():
    both = {"V100 SXM2": 300, "A100 SXM 80GB": 600, "H100 SXM": 900, "B200 SXM": 1800, "RTX 3090": 112.5, "MI300X": 896}
    assert {g.name: 2 * g.fast.gb_s for g in GPUS if g.name in both} == both


def test_a_peak_by_type():
    assert gpu_of("NVIDIA H100 80GB HBM3").flops("bf16") == pytest.approx(989.4e12)
    assert gpu_of("NVIDIA H100 80GB HBM3").flops("fp16") == pytest.approx(989.4e12)
    # Volta and Turing have no bf16
    assert gpu_of("Tesla V100-SXM2-16GB").flops("bf16") is None
    assert gpu_of("Tesla T4").flops("fp16") == pytest.approx(65e12)
    assert gpu_of("NVIDIA A100-SXM4-40GB").flops("fp8") is None


def test_the_table_of_published_figures_agrees(truth):
    """No figure is off by more than 3% where a table of figures from elsewhere has the same device."""
    # that table has both dies of it, and prints a rounded figure for the other one
    dies, rounds = {"MI250X": 2}, {"MI355X": 0.01}
    with (truth / "tables" / "hardware.csv").open() as file:
        rows = {row["gpu"].replace(" 16/32GB", ""): row for row in csv.DictReader(file)}
    compared = 0
    for gpu in GPUS:
        if gpu.name not in rows:
            continue
        peak, memory = (
            float(rows[gpu.name][column].split()[0].split("/")[0]) / dies.get(gpu.name, 1)
            for column in ("fp16_bf16_dense_tflops", "hbm_gb_s")
        )
        assert gpu.tflops.get("bf16", gpu.tflops.get("fp16")) == pytest.approx(peak, rel=rounds.get(gpu.name, 0.002))
        assert gpu.memory_gb_s == pytest.approx(memory, rel=0.002)
        compared += 1
    assert compared >= 18


def test_networks_by_rate():
    assert network_of(400) == "InfiniBand NDR"
    assert network_of(10) is None

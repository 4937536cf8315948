"""What people write for a GPU and for links, read into the hardware catalogue's entries and GB/s."""

from __future__ import annotations

import re
from dataclasses import replace

from dtprof.catalogue.hardware import GPUS, Gpu, gpu_of

# what a name has to contain, in this order of trial
_CALLED: tuple[tuple[str, str], ...] = (
    (r"gb300", "GB300"), (r"gb200", "GB200"), (r"b300", "B300 SXM"), (r"b200", "B200 SXM"), (r"gh200", "GH200"),
    (r"h200", "H200 SXM"), (r"h100.*nvl\b", "H100 NVL"), (r"h100.*pcie", "H100 PCIe"), (r"h100|h800", "H100 SXM"),
    (r"a100.*pcie.*80|a100.*80.*pcie", "A100 PCIe 80GB"), (r"a100.*pcie", "A100 PCIe 40GB"), (r"a100.*80", "A100 SXM 80GB"),
    (r"a100|a800", "A100 SXM 40GB"), (r"v100.*pcie", "V100 PCIe"), (r"v100|dgx-?1\b", "V100 SXM2"), (r"l40s", "L40S"),
    (r"\ba40\b", "A40"), (r"\ba10g?\b", "A10"), (r"\bl4\b", "L4"), (r"\bt4\b", "T4"), (r"4090", "RTX 4090"),
    (r"3090", "RTX 3090"), (r"mi355", "MI355X"), (r"mi325", "MI325X"), (r"mi300", "MI300X"), (r"mi250", "MI250X"),
)  # fmt: skip
_BY_NAME = {gpu.name: gpu for gpu in GPUS}
# W of a module without a limit (vendors' data sheets)
_WATTS = {"A100 SXM 40GB": 400, "A100 SXM 80GB": 400, "H100 SXM": 700, "H200 SXM": 700, "B200 SXM": 1000}
# nodes that are sold or rented: the keys of a cluster that they give (vendors' and providers' descriptions)
NODES: dict[str, dict[str, str | int]] = {
    "DGX A100": {"gpu": "A100 SXM 80GB", "gpus_per_node": 8, "inter": "8x200 Gbit/s", "rails": 8, "host_memory": "2 TB"},
    "DGX H100": {"gpu": "H100 SXM", "gpus_per_node": 8, "inter": "8x400 Gbit/s", "rails": 8, "host_memory": "2 TB"},
    "DGX H200": {"gpu": "H200 SXM", "gpus_per_node": 8, "inter": "8x400 Gbit/s", "rails": 8, "host_memory": "2 TB"},
    "DGX B200": {"gpu": "B200 SXM", "gpus_per_node": 8, "inter": "8x400 Gbit/s", "rails": 8, "host_memory": "2 TB"},
    "DGX B300": {"gpu": "B300 SXM", "gpus_per_node": 8, "inter": "8x800 Gbit/s", "rails": 8, "host_memory": "2 TB"},
    "GB200 NVL72": {"gpu": "GB200", "gpus_per_node": 72, "inter": "72x400 Gbit/s", "rails": 72, "host_memory": "17 TB"},
    "GB300 NVL72": {"gpu": "GB300", "gpus_per_node": 72, "inter": "72x800 Gbit/s", "rails": 72, "host_memory": "17 TB"},
    "AWS P4d": {"gpu": "A100 SXM 40GB", "gpus_per_node": 8, "inter": "4x100 Gbit/s", "rails": 4, "host_memory": "1152 GiB"},
    "AWS P5": {"gpu": "H100 SXM", "gpus_per_node": 8, "inter": "32x100 Gbit/s", "rails": 32, "host_memory": "2 TiB"},
}
_NETWORK = {"edr": 100.0, "hdr": 200.0, "ndr": 400.0, "xdr": 800.0}


def gpu_called(text: str) -> Gpu | None:
    """The GPU that people call so (``a100_80gb``, ``DGX-H100``, ``H100 80GB HBM3``), or a driver; None where nobody does.

    Bandwidth of memory that the text states itself (``2.4TB/s``) is taken over.
    """
    plain = re.sub(r"[_\s]+", " ", text.lower()).strip()
    exact = next((gpu for gpu in GPUS if gpu.name.lower() == plain), None)
    called = next((_BY_NAME[name] for pattern, name in _CALLED if re.search(pattern, plain) and name in _BY_NAME), None)
    found = exact or called or gpu_of(text)
    told = re.search(r"([\d.]+) ?tb/s", plain)
    return replace(found, memory_gb_s=float(told[1]) * 1e3) if found and told else found


def clock_called(text: str, gpu: Gpu) -> float:
    """Share of the clock that a power limit in a description (``500W``) leaves: power grows with the cube of the clock.

    Dynamic power is C V^2 f, and voltage goes with frequency (Horowitz et al. 1994, low-power digital design).
    """
    told, most = re.search(r"\b(\d{3,4}) ?w\b", text.lower()), _WATTS.get(gpu.name)
    return min((int(told[1]) / most) ** (1 / 3), 1.0) if told and most else 1.0


def memory_called(text: str, gpu: Gpu) -> int:
    """Bytes of memory that a description states (``80GB``), the GPU's largest where it states none; 1 GB is 1e9 bytes."""
    told = [
        float(one) for one in re.findall(r"(?<![\d.])(\d+) ?g(?:i?b)?\b", text.lower().replace("_", " ")) if float(one) >= 8
    ]
    return int((told[0] if told else max(gpu.memory_gb)) * 1e9)


def node_gb_s(text: str, gpus_per_node: int) -> float | None:
    """GB/s per direction of a node to the others, of ``8x200Gbps HDR IB/node``, ``400Gbps/GPU RDMA``, ``4x100Gb RoCE``, ….

    None where it states no rate.
    """
    plain = text.lower()
    found = re.search(r"(?:(\d+) ?x ?)?([\d.]+) ?(t|g)(?:bit|bps|b)\b(/s)?", plain)
    if found:
        # GB/s with a capital B are bytes
        whole = re.search(r"[\d.]+ ?[TG]B/s", text) is not None
        rate = float(found[2]) * (1000 if found[3] == "t" else 1) / (1 if whole else 8) * int(found[1] or 1)
    else:
        name = next((name for name in _NETWORK if name in plain), None)
        if name is None:
            return None
        ports = re.search(r"(\d+) ?x", plain)
        rate = _NETWORK[name] / 8 * int(ports[1] if ports else 1)
    return rate * (gpus_per_node if re.search(r"/ ?gpu|per gpu", plain) else 1)

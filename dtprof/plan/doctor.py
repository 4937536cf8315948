"""A cluster of machines like one that ``dtprof doctor --json`` has looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dtprof.errors import InputError
from dtprof.session.ports import between_machines

_REMEDY = "give what dtprof doctor --json prints on a machine of the cluster"


def of_doctor(path: Path) -> dict[str, Any]:
    """The keys of a ``[cluster]`` table that the document tells: gpu, gpus and gpus_per_node, memory, and inter where known.

    Adapters are taken to serve all GPUs of the machine together; RDMA ports count, and other interfaces where there are none.
    """
    try:
        topology = json.loads(path.read_text(encoding="utf-8"))["topology"]
        gpus, network = list(topology["gpus"]), list(topology["network"])
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", _REMEDY) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: no document of dtprof doctor ({type(error).__name__}: {error})", _REMEDY) from None
    names = sorted({str(gpu.get("name")) for gpu in gpus})
    if len(names) != 1:
        raise InputError(
            f"{path}: {'GPUs of several kinds: ' + ', '.join(names) if names else 'the machine has no GPU'}", _REMEDY
        )
    if any(gpu.get("mig") for gpu in gpus):
        raise InputError(
            f"{path}: a GPU is divided (MIG), and its parts are not in the catalogue", "describe the cluster by hand"
        )
    told: dict[str, Any] = {"gpu": names[0], "gpus": len(gpus), "gpus_per_node": len(gpus)}
    memory = [int(gpu["memory"]) for gpu in gpus if gpu.get("memory")]
    if memory:
        told["memory"] = f"{min(memory)} B"
    speed = sum(between_machines(network))
    return told | ({"inter": f"{speed:g} GB/s"} if speed else {})

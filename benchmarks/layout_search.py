"""How long the planner searches: 1,024 GPUs for a model of 70 thousand million parameters, on one core.

    python benchmarks/layout_search.py [--gpus 1024] [--model "Llama 3 70B"] [--json]

CPU seconds are of the whole search: enumeration, memory, times, and the reasons of those that lose.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from dtprof.catalogue.hardware import gpu_of
from dtprof.plan.constants import Constants
from dtprof.plan.presets import preset
from dtprof.plan.search import Wanted, search
from dtprof.plan.search.words import brief
from dtprof.plan.software import SOFTWARE, software
from dtprof.plan.spec import Cluster
from dtprof.plan.time.step import Estimator

_NODE, _MEMORY, _INTRA_GB_S, _INTER_GB_S = 8, 80 * 10**9, 450.0, 400.0


def measure(model: str, gpus: int, generation: str) -> dict[str, object]:
    """One search of a cluster of DGX H100, sequences of 8,192 tokens, one sequence per GPU and step."""
    gpu = gpu_of("NVIDIA H100 80GB HBM3")
    assert gpu is not None
    wanted = Wanted(
        preset(model), Cluster(gpu, gpus, _NODE, _MEMORY, _INTRA_GB_S, _INTER_GB_S), software(generation), 8192, gpus
    )
    before = time.process_time()
    found = search(wanted, lambda cluster: Estimator(wanted.model, cluster, wanted.software, Constants()))
    cpu_s = time.process_time() - before
    best = brief(found.best.layout) if found.best else None
    return {"model": model, "gpus": gpus, "software": generation, "cpu_s": cpu_s, "layouts": found.tried, "best": best}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--model", default="Llama 3 70B")
    parser.add_argument("--software", nargs="*", default=["megatron-core", "fsdp2-compile"], choices=sorted(SOFTWARE))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(args.model, args.gpus, generation) for generation in args.software]
    if args.json:
        sys.stdout.write(json.dumps({"rows": rows}, indent=1) + "\n")
        return 0
    for row in rows:
        where = f"{row['model']} on {row['gpus']} GPUs, {row['software']}"
        sys.stdout.write(f"{where}: {row['cpu_s']:.1f} s of CPU, {row['layouts']} layouts, best {row['best']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

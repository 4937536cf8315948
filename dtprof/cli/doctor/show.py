"""The diagnosis in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from dtprof.catalogue.hardware import gpu_of
from dtprof.report.text_layout import wrap

STYLES = {"ok": "green", "limited": "yellow", "missing": "red", "absent": "dim", "unknown": "yellow"}
TITLES = {"training": "Training", "counters": "GPU counters", "system": "System", "disk": "Disk", "tools": "Tools"}
_STATE, _NAME = 9, 14
_NARROWEST, _WIDEST = 50, 100


def show(found: Mapping[str, Any]) -> None:
    """Print it, as wide as the terminal and no wider than is readable."""
    console = Console(highlight=False)
    for line in lines(found, max(_NARROWEST, min(console.width, _WIDEST))):
        console.print(line, soft_wrap=True)


def lines(found: Mapping[str, Any], width: int) -> Iterator[Text]:
    """Every line. Commands stand on lines of their own and are never broken, so that they can be copied."""
    of = found["versions"]
    head = f"dtprof {of['dtprof']} · Python {of['python']} · {of['system']} · {found['host']}"
    yield from (Text(line, "bold") for line in wrap(head, width))
    yield from (Text(line) for line in wrap(summary(found), width))
    for section, title in TITLES.items():
        items = [item for item in found["checks"] if item["section"] == section]
        if items:
            yield Text("")
            yield Text(title, "bold")
        for item in items:
            yield from _item(item, width)
    yield from _conflicts(found["conflicts"], width)
    yield Text("")
    yield Text("This machine", "bold")
    for text in machine(found["topology"]):
        yield from (Text(f"  {line}") for line in wrap(text, width - 2))


def summary(found: Mapping[str, Any]) -> str:
    """One sentence: what is missing, limited or in conflict, or that nothing is."""
    said = []
    for state in ("missing", "limited", "unknown"):
        names = [item["name"] for item in found["checks"] if item["state"] == state]
        said += [f"{state}: {', '.join(names)}"] if names else []
    if found["conflicts"]:
        said.append(f"conflicts: {len(found['conflicts'])}")
    return " · ".join(said) if said else "nothing is missing that this machine could have"


def _item(item: Mapping[str, Any], width: int) -> Iterator[Text]:
    indent = 2 + _STATE + _NAME
    style = STYLES[item["state"]]
    body = wrap(item["found"], width - indent)
    first = Text.assemble("  ", (item["state"].ljust(_STATE), style), (item["name"].ljust(_NAME), "bold"), body[0])
    yield first
    yield from (Text(" " * indent + line) for line in body[1:])
    if item["gives"]:
        verb = "gives" if item["state"] in ("ok", "limited") else "would give"
        yield from (Text(" " * indent + line, "dim") for line in wrap(f"{verb} {item['gives']}", width - indent))
    if item["get"]:
        yield Text(f"  {' ' * _STATE}get it: {item['get']}", "cyan")


def _conflicts(conflicts: Sequence[Mapping[str, str]], width: int) -> Iterator[Text]:
    if conflicts:
        yield Text("")
        yield Text("Conflicts", "bold")
    for conflict in conflicts:
        yield from (Text(f"  {line}", "yellow") for line in wrap(f"{conflict['what']}: {conflict['effect']}", width - 2))
        yield Text(f"    mend it: {conflict['get']}", "cyan")


def machine(found: Mapping[str, Any]) -> Iterator[str]:
    """The topology in sentences."""
    if not found:
        return
    cpu, limits = found["cpu"], found["limits"]
    counts = [f"{cpu[key]} {key if cpu[key] != 1 else key[:-1]}" for key in ("sockets", "cores", "threads") if cpu[key]]
    memory = found["memory_bytes"]
    yield f"{cpu['model'] or 'processor'}: {', '.join(counts)}" + (f"; {memory / 2**30:.0f} GiB" if memory else "")
    if cpu["usable"] != cpu["threads"]:
        yield f"this process may use {cpu['usable']} of the {cpu['threads']} threads"
    if limits["cores"] is not None:
        yield f"the control group allows {limits['cores']:g} cores"
    if limits["memory_bytes"] is not None:
        yield f"the control group allows {limits['memory_bytes'] / 2**30:.1f} GiB"
    if len(found["numa"]) > 1:
        yield "NUMA " + "; ".join(f"node {n['node']}: threads {n['cpus']}" for n in found["numa"])
    for gpu in found["gpus"]:
        yield _gpu(gpu)
    yield from _pairs(found["gpu_pairs"])
    for port in found["network"]:
        speed = f", {port['mbit_s'] / 1000:g} Gb/s" if port["mbit_s"] else ", speed not stated"
        yield f"{port['name']} ({port['kind']}{speed})"


def _gpu(gpu: Mapping[str, Any]) -> str:
    words = [f"GPU {gpu['index']}: {gpu['name']}", f"{gpu['memory'] / 2**30:.0f} GiB" if gpu["memory"] else "", str(gpu["bus"])]
    words.append(f"NUMA node {gpu['numa_node']}" if gpu["numa_node"] is not None else "")
    words.append(f"{gpu['nvlinks']} NVLinks" if gpu["nvlinks"] else "no NVLink")
    words.append("cut into MIG devices" if gpu["mig"] else "")
    return ", ".join(word for word in words if word) + expected_of(gpu["name"], gpu["nvlinks"])


def expected_of(name: str | None, nvlinks: int) -> str:
    """What the catalogue expects of such a GPU at best, and whether links are missing; empty where it has it not."""
    gpu = gpu_of(name)
    if gpu is None:
        return ""
    kind = "bf16" if gpu.flops("bf16") is not None else "fp16"
    told = f"; at best {(gpu.flops(kind) or 0) / 1e12:,.0f} TFLOP/s in {kind}, memory {gpu.memory_gb_s:,.0f} GB/s"
    if gpu.fast is None:
        return told
    told += f", {gpu.fast.gb_s:,.0f} GB/s to its peers"
    missing = gpu.fast.fabric == "nvlink" and gpu.fast.reach != "pair" and nvlinks < gpu.fast.links
    return told + (f" over {gpu.fast.links} NVLinks, of which {gpu.fast.links - nvlinks} are down" if missing else "")


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """GPUs that are connected alike on one line: all of them, or the pairs."""
    kinds: dict[str, list[str]] = {}
    for pair in pairs:
        kinds.setdefault(pair["by"], []).append("-".join(map(str, pair["gpus"])))
    for kind, which in kinds.items():
        yield f"between GPUs {'(all pairs)' if len(kinds) == 1 else ', '.join(which)}: {kind}"

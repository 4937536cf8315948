"""Runs two training steps of a user's module on tensors without contents and prints what they would hold at the peak.

A process of its own: torch takes seconds to import, and a module may do anything. torch.distributed._tools' MemTracker counts,
or FSDPMemTracker with FSDP2 over a process group that does not exist. Reads one JSON object, prints one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """The answer on the last line: bytes by category as the tracker names them, or ``problem``."""
    asked: dict[str, Any] = json.loads(sys.stdin.read())
    torch: Any = import_module("torch")
    mesh = _mesh(asked["ranks"]) if asked["sharded"] else None
    fake: Any = import_module("torch._subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)
    build = _function(asked["file"], asked["function"])
    with fake:
        module, inputs = build(asked["micro_batch"])
        blocks = _blocks(torch, module)
        if asked["recompute"]:
            _recompute(module, blocks)
        if mesh is not None:
            _shard(torch, module, _blocks(torch, module), mesh, asked["low"])
        optimizer = _optimizer(torch, asked["optimizer"], module)
        snapshot = _tracked(torch, module, inputs, optimizer, asked)
    peak: dict[str, int] = {}
    for counted in snapshot.values():
        for category, size in counted.items():
            peak[str(getattr(category, "value", category))] = peak.get(str(getattr(category, "value", category)), 0) + int(size)
    parameters = sum(p.numel() for p in module.parameters())
    sys.stdout.write("\n" + json.dumps({"peak": peak, "parameters": parameters, "blocks": len(blocks)}) + "\n")


def _mesh(ranks: int) -> Any:
    dist: Any = import_module("torch.distributed")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    dist.init_process_group("fake", rank=0, world_size=ranks, store=store)
    return import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (ranks,))


def _function(file: str, name: str) -> Any:
    path = Path(file)
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def _blocks(torch: Any, module: Any) -> list[Any]:
    """What is sharded and recomputed as one: the members of module lists that lie in no other."""
    found: list[Any] = []
    for child in module.children():
        found += list(child.children()) if isinstance(child, torch.nn.ModuleList) else _blocks(torch, child)
    return found


def _recompute(module: Any, blocks: list[Any]) -> None:
    wrapper: Any = import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    chosen = set(map(id, blocks))
    wrapper.apply_activation_checkpointing(module, check_fn=lambda child: id(child) in chosen)


def _shard(torch: Any, module: Any, blocks: list[Any], mesh: Any, low: str) -> None:
    fsdp: Any = import_module("torch.distributed.fsdp")
    more: dict[str, Any] = {"mesh": mesh}
    if low:
        more["mp_policy"] = fsdp.MixedPrecisionPolicy(param_dtype=getattr(torch, low), reduce_dtype=torch.float32)
    for block in blocks:
        fsdp.fully_shard(block, **more)
    fsdp.fully_shard(module, **more)


def _optimizer(torch: Any, name: str, module: Any) -> Any:
    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(module.parameters())


def _tracked(torch: Any, module: Any, inputs: Any, optimizer: Any, asked: dict[str, Any]) -> Any:
    if asked["sharded"]:
        tracker = import_module("torch.distributed._tools.fsdp2_mem_tracker").FSDPMemTracker(module, optimizer)
        tracker.track_inputs(inputs)
    else:
        tracker = import_module("torch.distributed._tools.mem_tracker").MemTracker()
        tracker.track_external(module, optimizer, *[one for one in inputs if isinstance(one, torch.Tensor)])
    low = asked["low"] if not asked["sharded"] else ""
    with tracker:
        # the second step has the optimizer's states from its beginning
        for _ in range(2):
            with torch.autocast("cpu", getattr(torch, low)) if low else contextlib.nullcontext():
                loss = _loss(torch, module(*inputs))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            tracker.reset_mod_stats()
    return tracker.get_tracker_snapshot("peak")


def _loss(torch: Any, out: Any) -> Any:
    """What the module returns, if it is a loss; its ``loss``; else the sum of what it returns."""
    loss = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if loss is None:
        loss = out[0] if isinstance(out, list | tuple) else out
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"the module returned {type(out).__name__}, and a loss or a tensor is needed")
    return loss if loss.ndim == 0 else loss.sum()


if __name__ == "__main__":
    main()

"""``dtprof plan explain SPEC.toml`` for a user's own module: what it holds on a rank, measured without a GPU."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dtprof.errors import InputError
from dtprof.numbers import count, size

if TYPE_CHECKING:
    from dtprof.plan.search.spec import Spec
    from dtprof.plan.spec import Layout

_KEYS = ("micro_batch", "zero", "shard", "dp", "recompute", "optimizer", "precision", "tp", "pp", "cp", "ep", "offload")


def run(args: argparse.Namespace, spec: Spec) -> int:
    """Measure and print; 1 where it does not fit."""
    from dtprof.cli.printing import print_json, print_lines
    from dtprof.plan.memory import fits
    from dtprof.plan.memory.measured import measure

    if args.what == "search":
        what = f"{spec.path}: a module has no dimensions to search over"
        raise InputError(what, "dtprof plan explain measures its memory; for a search give the model's dimensions")
    if args.run_path:
        raise InputError("--from calibrates times, and a module's times are not predicted", "leave --from away")
    layout = _layout(spec)
    found = measure(spec.module, layout, spec.path.parent)
    fit = fits(found.memory, spec.cluster)
    if args.json:
        print_json({
            "schema": 1, "module": spec.module, "parameters": found.parameters, "blocks": found.blocks, "fit": fit,
            "memory": found.memory.document(),
        })  # fmt: skip
    else:
        from dtprof.cli.plan_lines import memory_table

        words = {"fits": "fits", "tight": "fits only without the allowances", "no": "does not fit"}
        needs = f"{size(found.memory.device)} on a rank at the peak of a step"
        head = [
            f"{spec.module}: {count(found.parameters)} parameters, {needs}; it {words[fit]} on {spec.cluster.gpu.name} with "
            f"{size(spec.cluster.memory_bytes)}",
            "Measured with torch's memory trackers on tensors without contents; DDP's buckets are not in it.",
            "",
        ]
        print_lines(lambda width: [*head, *memory_table(found.memory, width)])
    return 0 if fit != "no" else 1


def _layout(spec: Spec) -> Layout:
    from dtprof.plan.reading import layout_of
    from dtprof.plan.spec import Layout

    known = {field.name for field in fields(Layout)}
    for key in spec.layout:
        if key in known and key not in _KEYS:
            raise InputError(f"{spec.path}: layout.{key} means nothing to a module", f"known here: {', '.join(_KEYS)}")
    values: dict[str, Any] = {"dp": spec.cluster.gpus, "micro_batch": 1, "seq": 1, "zero": 0, **spec.layout}
    values["global_batch"] = values["dp"] * values["micro_batch"] if isinstance(values["micro_batch"], int) else 1
    return layout_of(values, str(spec.path))

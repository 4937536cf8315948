"""Reading what a plan is about: model.toml or a Hugging Face configuration, cluster.toml, the tables of a SPEC.toml."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

from dtprof.catalogue.hardware import PCIE_X16_GB_S
from dtprof.errors import InputError
from dtprof.plan import presets
from dtprof.plan.doctor import of_doctor
from dtprof.plan.machines import NODES, gpu_called
from dtprof.plan.spec import Cluster, Layout, Mla, Model, Moe, Offload, Positions

# sizes of experts and of latent attention that may be 0
_MAY_BE_NONE = ("shared", "dense_layers", "node_limit", "q_rank", "nope_dim", "rope_dim")
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?([\d.]+)\s*(g|t)(b(?:it|ps)?|B)(?:/s|ps)?", re.IGNORECASE)
# default of one node
_NODE = 8


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file; InputError names the line that is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "give a .toml file, or a preset's name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}", "give a readable .toml file") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {error}", "mend the line; strings stand in quotes") from None


def read_model(told: str, folder: Path = Path()) -> Model:
    """A preset's name, a .toml with the fields of Model, or a Hugging Face config.json; paths are relative to ``folder``."""
    path = folder / told
    if path.suffix == ".json":
        return _of_config(path)
    if path.suffix == ".toml":
        tables = read_toml(path)
        return model_of(tables.get("model", tables), str(path))
    return presets.preset(told)


def model_of(table: object, where: str, folder: Path = Path()) -> Model:
    """A model from a table: Model's fields, on top of a ``preset`` if it names one; a string is a preset or a file."""
    if isinstance(table, str):
        return read_model(table, folder)
    known = _table(table, where, "model")
    base = known.pop("preset", None) or known.pop("config", None)
    parts = {"moe": Moe, "mla": Mla}
    for key, kind in parts.items():
        if key in known:
            inner = _table(known[key], where, f"model.{key}")
            _only(inner, kind, where, f"model.{key}")
            for name, number in inner.items():
                _whole(number, where, f"model.{key}.{name}", 0 if name in _MAY_BE_NONE else 1)
            known[key] = kind(**inner)
    start = {} if base is None else _fields(read_model(str(base), folder))
    values = {**start, **known}
    if not start:
        _derive(values)
    _only(values, Model, where, "model")
    if values.get("positions", "rotary") not in get_args(Positions):
        raise InputError(f"{where}: model.positions {values['positions']!r}", f"one of {', '.join(get_args(Positions))}")
    model = Model(**values)
    sizes = ("layers", "hidden", "heads", "ffn", "vocab", "kv_heads", "head_dim")
    for key in sizes:
        if getattr(model, key) < 1:
            raise InputError(f"{where}: model.{key} = {getattr(model, key)}", "give 1 or more")
    return model


def cluster_of(table: object, where: str, folder: Path = Path()) -> Cluster:
    """A cluster from a table: ``gpu``, ``gpus``, ``gpus_per_node``, ``memory``, ``intra``, ``inter`` and the rest of Cluster.

    ``preset`` names nodes that are sold (``DGX H100``), of which ``gpus`` GPUs are taken; ``doctor`` a file with what
    ``dtprof doctor --json`` printed, of whose machine there are as many as ``gpus`` need.
    What is left out comes from the hardware catalogue: memory, fast links; ``inter`` is asked for with more than one node.
    Sizes have units (``80 GB``, ``74.5 GiB``), and so have rates (``8x200 Gbit/s``, ``50 GB/s``), per direction.
    """
    if isinstance(table, str) and table.endswith(".json"):
        table = {"doctor": table}
    if isinstance(table, str):
        tables = read_toml(folder / table)
        return cluster_of(tables.get("cluster", tables), str(folder / table))
    known = _table(table, where, "cluster")
    if "doctor" in known:
        known = of_doctor(folder / str(known.pop("doctor"))) | known
    named = known.pop("preset", None)
    if named is not None:
        if named not in NODES:
            raise InputError(f"{where}: cluster.preset {named!r} is not known", f"one of {', '.join(NODES)}")
        known = {"name": named, **NODES[named], **known}
        known["gpus_per_node"] = min(known["gpus_per_node"], _whole(known.get("gpus", 1), where, "cluster.gpus"))
    allowed = (
        "gpu", "gpus", "gpus_per_node", "memory", "host_memory", "intra", "inter", "rails", "pod_gpus", "pod_share", "name",
    )  # fmt: skip
    _no_others(known, allowed, where, "cluster")
    gpu = gpu_called(str(known.get("gpu", "")))
    if gpu is None:
        what = f"{where}: cluster.gpu {known.get('gpu')!r} is not in the hardware catalogue"
        raise InputError(what, 'write it as drivers do, as gpu = "H100 SXM"; docs/planner.md lists them')
    gpus = _whole(known.get("gpus", 1), where, "cluster.gpus")
    per_node = _whole(known.get("gpus_per_node", min(gpus, _NODE)), where, "cluster.gpus_per_node")
    if gpus > per_node and "inter" not in known:
        raise InputError(f"{where}: cluster.inter is missing", 'say what connects the nodes, as inter = "8x400 Gbit/s"')
    if gpus > per_node and gpus % per_node:
        raise InputError(f"{where}: {gpus} GPUs are no full nodes of {per_node}", f"{gpus // per_node * per_node} would do")
    memory = known.get("memory")
    intra = known.get("intra")
    return Cluster(
        gpu,
        gpus,
        per_node,
        max(gpu.memory_gb) * 10**9 if memory is None else bytes_of(str(memory), f"{where}: cluster.memory"),
        (gpu.fast.gb_s if gpu.fast else PCIE_X16_GB_S[gpu.pcie])
        if intra is None
        else rate_of(str(intra), f"{where}: cluster.intra"),
        rate_of(str(known["inter"]), f"{where}: cluster.inter") if "inter" in known else 0.0,
        _whole(known.get("rails", 0), where, "cluster.rails", 0),
        _whole(known.get("pod_gpus", 0), where, "cluster.pod_gpus", 0),
        _share(known.get("pod_share", 1.0), where),
        str(known.get("name", "")),
        host_memory_bytes=bytes_of(str(known["host_memory"]), f"{where}: cluster.host_memory") if "host_memory" in known else 0,
    )


def layout_of(table: object, where: str) -> Layout:
    """A layout from a table of Layout's fields; whether it can be laid out so is ``spec.check``'s question."""
    known = _table(table, where, "layout")
    if isinstance(known.get("offload"), str):
        known["offload"] = [known["offload"]]
    if "offload" in known:
        known["offload"] = tuple(known["offload"])
        for one in known["offload"]:
            if one not in get_args(Offload):
                raise InputError(f"{where}: layout.offload {one!r}", f"one or more of {', '.join(get_args(Offload))}")
    _only(known, Layout, where, "layout")
    return Layout(**known)


def bytes_of(text: str, where: str) -> int:
    """``80 GB``, ``74.5 GiB``, … in bytes; InputError without a unit."""
    found = re.fullmatch(r"([\d.]+)\s*([kmgt]?i?b)", text.strip().lower())
    if found is None or found[1].count(".") > 1:
        raise InputError(f"{where}: {text!r} is no size", "write it with its unit, as 80 GB or 74.5 GiB")
    return int(float(found[1]) * _BYTES[found[2]])


def rate_of(text: str, where: str) -> float:
    """``50 GB/s``, ``400 Gbit/s``, ``8x200Gbps``, … in GB/s; a small b is bits, InputError without a unit."""
    found = _RATE.fullmatch(text.strip())
    if found is None or found[2].count(".") > 1:
        raise InputError(f"{where}: {text!r} is no rate", "write it with its unit, as 50 GB/s or 8x200 Gbit/s")
    bits = found[4] != "B"
    return int(found[1] or 1) * float(found[2]) * (1000 if found[3].lower() == "t" else 1) / (8 if bits else 1)


def _of_config(path: Path) -> Model:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}", "give the config.json of a model") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: no JSON object", "give the config.json of a model")
    return of_config(config, str(path))


def of_config(config: dict[str, Any], where: str) -> Model:
    """A model from the words of a Hugging Face configuration (Llama, Mixtral, DeepSeek, Qwen, GPT-2, MPT, BERT, …)."""

    def value(*names: str, default: Any = None) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), default)

    hidden = value("hidden_size", "n_embd", "d_model")
    layers = value("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = value("num_attention_heads", "n_head", "n_heads")
    vocab = value("vocab_size")
    lacking = [name for name, one in (("hidden_size", hidden), ("num_hidden_layers", layers), ("num_attention_heads", heads),
                                      ("vocab_size", vocab)) if not isinstance(one, int)]  # fmt: skip
    if lacking:
        raise InputError(f"{where}: {lacking[0]} is missing", "give the config.json of a transformer")
    kind = str(value("model_type", default=""))
    old = kind in ("gpt2", "mpt", "bert", "gpt_neox", "opt", "bloom", "roberta", "gpt_bigcode")
    experts = value("n_routed_experts", "num_local_experts", "num_experts")
    moe = None
    if experts:
        inner = value("moe_intermediate_size", "intermediate_size")
        moe = Moe(experts, value("num_experts_per_tok", "moe_top_k", default=2), inner, value("n_shared_experts", default=0),
                  value("first_k_dense_replace", default=0), value("decoder_sparse_step", default=1),
                  value("topk_group", default=0) if value("n_group", default=1) > 1 else 0)  # fmt: skip
    mla = None
    if value("kv_lora_rank"):
        mla = Mla(config["kv_lora_rank"], value("q_lora_rank", default=0), value("qk_nope_head_dim", default=128),
                  value("qk_rope_head_dim", default=64), value("v_head_dim", default=128))  # fmt: skip
    learned = kind in ("gpt2", "bert", "opt", "roberta", "gpt_bigcode")
    return Model(
        str(value("name_or_path", "_name_or_path", default="") or kind or "model"),
        layers,
        hidden,
        heads,
        value("intermediate_size", "n_inner", "ffn_dim", default=int(value("expansion_ratio", default=4) * hidden)),
        vocab,
        value("num_key_value_heads", default=1 if config.get("multi_query") else heads),
        value("head_dim", default=hidden // heads),
        gated=not old and str(value("hidden_act", "hidden_activation", default="silu")) not in ("relu2", "gelu_new", "relu"),
        tied=bool(value("tie_word_embeddings", default=old)),
        biases=bool(value("attention_bias", default=old)) and not config.get("no_bias"),
        positions="learned" if learned else "alibi" if kind == "bloom" else "rotary",
        max_positions=value("max_position_embeddings", "n_positions", "max_seq_len", default=0),
        causal=kind not in ("bert", "roberta"),
        moe=moe,
        mla=mla,
        source=where,
    )


def _derive(values: dict[str, Any]) -> None:
    """What follows from the rest where a table leaves it out."""
    values.setdefault("name", "model")
    if isinstance(values.get("heads"), int):
        values.setdefault("kv_heads", values["heads"])
        if isinstance(values.get("hidden"), int) and values["heads"] > 0:
            values.setdefault("head_dim", values["hidden"] // values["heads"])
    if isinstance(values.get("hidden"), int):
        values.setdefault("ffn", 4 * values["hidden"])


def _fields(one: Any) -> dict[str, Any]:
    return {field.name: getattr(one, field.name) for field in fields(one)}


def _table(value: object, where: str, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: {name} is {value!r}", f"write a table [{name}]")
    return dict(value)


def _only(values: dict[str, Any], kind: type, where: str, name: str) -> None:
    """InputError where a key is not a field of ``kind``, a needed one lacks, or a value has another type."""
    known = {field.name: field for field in fields(kind)}
    _no_others(values, tuple(known), where, name)
    for key, field in known.items():
        if key not in values:
            if field.default is MISSING:
                raise InputError(f"{where}: {name}.{key} is missing", f"add {key} = … to [{name}]")
            continue
        wanted: tuple[type, ...] = {"int": (int,), "bool": (bool,), "str": (str,), "float": (int, float)}.get(
            str(field.type), ()
        )
        value = values[key]
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise InputError(f"{where}: {name}.{key} = {value!r}", f"give {field.type}")


def _no_others(values: dict[str, Any], known: tuple[str, ...], where: str, name: str) -> None:
    for key in values:
        if key not in known:
            raise InputError(f"{where}: {name}.{key} is not known", f"known: {', '.join(known)}")


def _whole(value: object, where: str, name: str, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{where}: {name} = {value!r}", f"give a whole number from {least}")
    return value


def _share(value: object, where: str) -> float:
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(f"{where}: cluster.pod_share = {value!r}", "give a share above 0, at most 1")
    return float(value)

"""Models by name. Each entry says where its dimensions stand: a paper's table, or the configuration beside the weights."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from dtprof.errors import InputError
from dtprof.plan.spec import Mla, Model, Moe

_LATENT = Mla(kv_rank=512)


def _gpt(name: str, layers: int, hidden: int, heads: int, vocab: int, source: str, **more: Any) -> Model:
    """GPT-2's architecture: a feed-forward part of 4 x hidden with GELU, learned positions, biases, tied output matrix."""
    first = {"ffn": 4 * hidden, "tied": True, "biases": True, "positions": "learned", "max_positions": 2048}
    known: dict[str, Any] = {**first, "kv_heads": heads, "head_dim": hidden // heads, **more}
    return Model(name, layers, hidden, heads, vocab=vocab, source=source, **known)


def _llama(
    name: str, layers: int, hidden: int, heads: tuple[int, int], ffn: int, vocab: int, source: str, **more: Any
) -> Model:
    """Llama's architecture: gated feed-forward part, rotary positions, no biases; ``heads``: those of queries and of keys."""
    known: dict[str, Any] = {"gated": True, "kv_heads": heads[1], "head_dim": hidden // heads[0], **more}
    return Model(name, layers, hidden, heads[0], ffn, vocab, source=source, **known)


_GPT3 = "Brown et al. 2020, table 2.1; GPT-2's vocabulary"
_GPT2 = "Radford et al. 2019, table 2; GPT-2's published configurations"
_MEGATRON = "Narayanan et al. 2021, table 1"
_KORTHIKANTI = "Korthikanti et al. 2022, table 3"
_MPT = "LLM-Foundry, training configurations mpt-*.yaml"
_BERT = "Devlin et al. 2018, section 3; published configurations"
_LLAMA2 = "Touvron et al. 2023 (Llama 2), table 1 of Llama; published configurations"
_LLAMA3 = "Grattafiori et al. 2024 (Llama 3), table 3"
_LLAMA32 = "Llama 3.2, published configurations"
_QWEN3 = "Qwen3 technical report 2025, tables 1 and 2; published configurations"
_QWEN25 = "Qwen2.5 technical report 2024, table 1; published configurations"
_PLAYBOOK = "nanotron's benchmark sizes: Llama 3's shapes without grouped queries that give the published parameter counts"

_MODELS: tuple[Model, ...] = (
    _gpt("GPT-3 125M", 12, 768, 12, 50257, _GPT3),
    _gpt("GPT-3 350M", 24, 1024, 16, 50257, _GPT3),
    _gpt("GPT-3 760M", 24, 1536, 16, 50257, _GPT3),
    _gpt("GPT-3 1.3B", 24, 2048, 16, 50257, _GPT3 + ", which prints 24 heads of 128"),
    _gpt("GPT-3 2.7B", 32, 2560, 32, 50257, _GPT3),
    _gpt("GPT-3 6.7B", 32, 4096, 32, 50257, _GPT3),
    _gpt("GPT-3 13B", 40, 5120, 40, 50257, _GPT3 + ", which prints 5140"),
    _gpt("GPT-3 175B", 96, 12288, 96, 50257, _GPT3),
    _gpt("GPT-2 117M", 12, 768, 12, 50257, _GPT2, max_positions=1024),
    _gpt("GPT-2 345M", 24, 1024, 16, 50257, _GPT2, max_positions=1024),
    _gpt("GPT-2 762M", 36, 1280, 20, 50257, _GPT2, max_positions=1024),
    _gpt("GPT-2 1.5B", 48, 1600, 25, 50257, _GPT2, max_positions=1024),
    _gpt("GPT 1.7B", 24, 2304, 24, 51200, _MEGATRON),
    _gpt("GPT 3.6B", 30, 3072, 32, 51200, _MEGATRON),
    _gpt("GPT 7.5B", 36, 4096, 32, 51200, _MEGATRON),
    _gpt("GPT 18B", 40, 6144, 48, 51200, _MEGATRON),
    _gpt("GPT 39B", 48, 8192, 64, 51200, _MEGATRON),
    _gpt("GPT 76B", 60, 10240, 80, 51200, _MEGATRON),
    _gpt("GPT 145B", 80, 12288, 96, 51200, _MEGATRON),
    _gpt("GPT 291B", 90, 16384, 128, 51200, _MEGATRON + " of January"),
    _gpt("GPT 310B", 96, 16384, 128, 51200, _MEGATRON),
    _gpt("GPT 530B", 105, 20480, 128, 51200, _MEGATRON),
    _gpt("GPT 1T", 128, 25600, 160, 51200, _MEGATRON),
    _gpt("Megatron 22B", 48, 6144, 64, 51200, _KORTHIKANTI),
    _gpt("Megatron 175B", 96, 12288, 96, 51200, _KORTHIKANTI),
    _gpt("Megatron 530B", 105, 20480, 128, 51200, _KORTHIKANTI),
    _gpt("Megatron 1T", 128, 25600, 160, 51200, _KORTHIKANTI),
    _gpt("MPT-125m", 12, 768, 12, 50368, _MPT),
    _gpt("MPT-350m", 24, 1024, 16, 50368, _MPT),
    _gpt("MPT-760m", 24, 1536, 12, 50368, _MPT),
    _gpt("MPT-1b", 24, 2048, 16, 50368, _MPT),
    _gpt("MPT-3b", 32, 2560, 20, 50368, _MPT),
    _gpt("MPT-7b", 32, 4096, 32, 50368, _MPT),
    _gpt("MPT-13b", 40, 5120, 40, 50368, _MPT),
    _gpt("MPT-30b", 48, 7168, 56, 50368, _MPT),
    _gpt("MPT-70b", 80, 8192, 64, 50368, _MPT),
    _gpt("BERT-base", 12, 768, 12, 30522, _BERT, max_positions=512, causal=False),
    _gpt("BERT-large", 24, 1024, 16, 30522, _BERT, max_positions=512, causal=False),
    _gpt("GPT-NeoX 20B", 44, 6144, 64, 50432, "Black et al. 2022, section 2", tied=False, positions="rotary"),
    _gpt("BLOOM 176B", 70, 14336, 112, 250880, "BLOOM 2022, table 3", positions="alibi"),
    _gpt("OPT 175B", 96, 12288, 96, 50272, "Zhang et al. 2022 (OPT), table 1"),
    _gpt("Nemotron-4 15B", 32, 6144, 48, 256000, "Parmar et al. 2024, table 1", kv_heads=8, tied=False, biases=False,
         positions="rotary"),
    _gpt("Nemotron-4 340B", 96, 18432, 96, 256000, "Nemotron-4 340B 2024, table 1", kv_heads=8, tied=False, biases=False,
         positions="rotary"),
    _llama("Llama 7B", 32, 4096, (32, 32), 11008, 32000, "Touvron et al. 2023 (Llama), table 2"),
    _llama("Llama 13B", 40, 5120, (40, 40), 13824, 32000, "Touvron et al. 2023 (Llama), table 2"),
    _llama("Llama 30B", 60, 6656, (52, 52), 17920, 32000, "Touvron et al. 2023 (Llama), table 2"),
    _llama("Llama 65B", 80, 8192, (64, 64), 22016, 32000, "Touvron et al. 2023 (Llama), table 2"),
    _llama("Llama 2 7B", 32, 4096, (32, 32), 11008, 32000, _LLAMA2),
    _llama("Llama 2 13B", 40, 5120, (40, 40), 13824, 32000, _LLAMA2),
    _llama("Llama 2 34B", 48, 8192, (64, 8), 22016, 32000, "Roziere et al. 2023 (Code Llama), published configuration"),
    _llama("Llama 2 70B", 80, 8192, (64, 8), 28672, 32000, _LLAMA2),
    _llama("CodeLlama 34B", 48, 8192, (64, 8), 22016, 32000, "Roziere et al. 2023 (Code Llama), published configuration"),
    _llama("Llama 3 8B", 32, 4096, (32, 8), 14336, 128256, _LLAMA3),
    _llama("Llama 3 70B", 80, 8192, (64, 8), 28672, 128256, _LLAMA3),
    _llama("Llama 3 405B", 126, 16384, (128, 8), 53248, 128256, _LLAMA3),
    _llama("Llama 3.2 1B", 16, 2048, (32, 8), 8192, 128256, _LLAMA32, tied=True),
    _llama("Llama 3.2 3B", 28, 3072, (24, 8), 8192, 128256, _LLAMA32, tied=True),
    _llama("Llama-like 1.34B", 16, 2048, (32, 32), 8192, 131072, _PLAYBOOK, tied=True),
    _llama("Llama-like 3.57B", 28, 3072, (24, 24), 8192, 131072, _PLAYBOOK, tied=True),
    _llama("Llama-like 8.86B", 32, 4096, (32, 32), 14336, 131072, _PLAYBOOK),
    _llama("Llama-like 80B", 80, 8192, (64, 64), 28672, 131072, _PLAYBOOK),
    _llama("Mistral 7B", 32, 4096, (32, 8), 14336, 32000, "Jiang et al. 2023 (Mistral), table 1"),
    _llama("InternLM 7B", 32, 4096, (32, 32), 11008, 103168, "InternLM-7B, published configuration"),
    _llama("Mixtral 8x7B", 32, 4096, (32, 8), 14336, 32000, "Jiang et al. 2024 (Mixtral), table 1", moe=Moe(8, 2, 14336)),
    _llama("Mixtral 8x22B", 56, 6144, (48, 8), 16384, 32768, "Mixtral 8x22B, published configuration", moe=Moe(8, 2, 16384)),
    _llama("DeepSeek-V2-Lite", 27, 2048, (16, 16), 10944, 102400, "DeepSeek-V2 2024, appendix B", mla=_LATENT,
           moe=Moe(64, 6, 1408, 2, 1)),
    _llama("DeepSeek-V2", 60, 5120, (128, 128), 12288, 102400, "DeepSeek-V2 2024, section 3.1.2", head_dim=128,
           mla=replace(_LATENT, q_rank=1536), moe=Moe(160, 6, 1536, 2, 1)),
    _llama("DeepSeek-V3", 61, 7168, (128, 128), 18432, 129280, "DeepSeek-V3 2024, section 4.2", head_dim=128,
           mla=replace(_LATENT, q_rank=1536), moe=Moe(256, 8, 2048, 1, 3, node_limit=4)),
    _llama("Kimi K2", 61, 7168, (64, 64), 18432, 163840, "Kimi K2 2025, table 2; published configuration", head_dim=128,
           mla=replace(_LATENT, q_rank=1536), moe=Moe(384, 8, 2048, 1, 1)),
    _llama("Moonlight 16B-A3B", 27, 2048, (16, 16), 11264, 163840, "Moonlight 2025, published configuration", mla=_LATENT,
           moe=Moe(64, 6, 1408, 2, 1)),
    _llama("Qwen2.5 7B", 28, 3584, (28, 4), 18944, 152064, _QWEN25),
    _llama("Qwen2.5 14B", 48, 5120, (40, 8), 13824, 152064, _QWEN25),
    _llama("Qwen2.5 32B", 64, 5120, (40, 8), 27648, 152064, _QWEN25),
    _llama("Qwen2.5 72B", 80, 8192, (64, 8), 29568, 152064, _QWEN25),
    _llama("Qwen3 0.6B", 28, 1024, (16, 8), 3072, 151936, _QWEN3, head_dim=128, tied=True),
    _llama("Qwen3 1.7B", 28, 2048, (16, 8), 6144, 151936, _QWEN3, tied=True),
    _llama("Qwen3 4B", 36, 2560, (32, 8), 9728, 151936, _QWEN3, head_dim=128, tied=True),
    _llama("Qwen3 8B", 36, 4096, (32, 8), 12288, 151936, _QWEN3),
    _llama("Qwen3 14B", 40, 5120, (40, 8), 17408, 151936, _QWEN3),
    _llama("Qwen3 32B", 64, 5120, (64, 8), 25600, 151936, _QWEN3, head_dim=128),
    _llama("Qwen3 30B-A3B", 48, 2048, (32, 4), 6144, 151936, _QWEN3, head_dim=128, moe=Moe(128, 8, 768)),
    _llama("Qwen3 235B-A22B", 94, 4096, (64, 4), 12288, 151936, _QWEN3, head_dim=128, moe=Moe(128, 8, 1536)),
    _llama("GPT-OSS 20B", 24, 2880, (64, 8), 2880, 201088, "GPT-OSS 2025, model card", head_dim=64, moe=Moe(32, 4, 2880)),
    _llama("GPT-OSS 120B", 36, 2880, (64, 8), 2880, 201088, "GPT-OSS 2025, model card", head_dim=64, moe=Moe(128, 4, 2880)),
)  # fmt: skip

MODELS: dict[str, Model] = {model.name: model for model in _MODELS}
# other spellings, as _plain leaves them
_ALIASES = {
    "llama318b": "Llama 3 8B", "llama3170b": "Llama 3 70B", "llama31405b": "Llama 3 405B", "llama3370b": "Llama 3 70B",
    "llama8b": "Llama 3 8B", "llama70b": "Llama 2 70B", "llama405b": "Llama 3 405B", "mixtral": "Mixtral 8x7B",
    "deepseekv3671b": "DeepSeek-V3", "deepseekr1": "DeepSeek-V3", "deepseekv2236b": "DeepSeek-V2", "kimik21t": "Kimi K2",
    "moonlight": "Moonlight 16B-A3B", "moonlight16b": "Moonlight 16B-A3B", "qwen330b": "Qwen3 30B-A3B",
    "qwen3moe30b": "Qwen3 30B-A3B", "qwen3moe235b": "Qwen3 235B-A22B", "qwen3235b": "Qwen3 235B-A22B",
    "gpt3": "GPT-3 175B", "gpt175b": "GPT-3 175B", "gpt3175b": "GPT-3 175B", "gpt22b": "Megatron 22B", "bert": "BERT-large",
    "codellama234b": "CodeLlama 34B", "mtnlg530b": "Megatron 530B", "mtnlg": "Megatron 530B", "gpt21.5b": "GPT-2 1.5B",
    "nemotron15b": "Nemotron-4 15B", "nemotron340b": "Nemotron-4 340B", "gptneox": "GPT-NeoX 20B", "internlm": "InternLM 7B",
    "bloom": "BLOOM 176B", "opt": "OPT 175B",
}  # fmt: skip


def preset(name: str) -> Model:
    """The model of this name; InputError with the nearest names."""
    found = find(name)
    if found is None:
        near = get_close_matches(_plain(name), [_plain(known) for known in MODELS], n=3, cutoff=0.5)
        names = [known for known in MODELS if _plain(known) in near] or list(MODELS)
        raise InputError(f"no preset is called {name!r}", f"near it: {', '.join(names[:6])}; or give a model.toml")
    return found


def find(name: str) -> Model | None:
    """The model that a table or a user calls so: case, separators and remarks in brackets do not count."""
    by_name = {_plain(known): model for known, model in MODELS.items()}
    # as an organisation's model
    for one in (_plain(name), _plain(name.split("/")[-1])):
        if one in by_name or one in _ALIASES:
            return by_name.get(one) or MODELS[_ALIASES[one]]
    return None


def _plain(name: str) -> str:
    """Lower case, without brackets, separators, and how many nodes it ran on."""
    bare = re.sub(r"\(.*?\)|\b\d+[- ]?nodes?\b|instruct|chat|pretrain\w*", " ", name.lower())
    return re.sub(r"[^a-z0-9.]|(?<!\d)\.|\.(?!\d)", "", bare).replace("llama3.1", "llama31").replace("llama3.3", "llama33")

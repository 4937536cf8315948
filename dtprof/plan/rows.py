"""Rows of published tables as plans: model, cluster, layout, software. No measured column and no note is ever looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtprof.catalogue.hardware import PCIE_X16_GB_S, Gpu
from dtprof.plan import presets, row_words, sizes
from dtprof.plan.machines import clock_called, gpu_called, memory_called, node_gb_s
from dtprof.plan.software import software
from dtprof.plan.spec import Cluster, Layout, Model, Software, check, divisors

# the columns that are read, and no others
READ = (
    "source", "model", "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "gpu_type",
    "inter_bw", "tp", "pp", "vpp", "cp", "ep", "dp", "zero_stage_sharding", "micro_batch", "global_batch", "recompute", "dtype",
    "attn",
)  # fmt: skip
# GB/s of a node's ports where a table is silent, by compute capability: DGX-1, DGX A100, DGX H100 and later; racks of 72
_PORTS = ((100, 400.0), (90, 400.0), (80, 200.0), (0, 50.0))
_RACK, _RACK_PORTS = 72, 3600.0
_NODE = 8
_HOPPER = 90
# GPT-2's vocabulary, BERT's
_VOCABULARY, _BERT_VOCABULARY = 50257, 30522
# no row has more
_MOST, _MOST_OF_ANY = {"layers": 10_000, "pp": 10_000, "vpp": 1_000, "gpus": 10_000_000}, 1_000_000_000
# constraints worth a word where a row breaks them: it ran all the same
_TOLD = ("dp", "tp", "pp", "vpp", "ep")
# sequences of a pass where a table is silent and there is no pipeline
_MOST_SEQUENCES = 16
# a gated feed-forward part has three matrices: what parameters say within this much
_NEAR = 0.06


class CannotPredict(Exception):  # noqa: N818
    """A row that lacks something; the message says what."""


@dataclass(frozen=True)
class Row:
    """A row as a plan; ``assumed``: what the table does not say and was taken instead; ``convention``: its FLOP/s."""

    model: Model
    cluster: Cluster
    layout: Layout
    software: Software
    convention: str
    assumed: tuple[str, ...] = ()


def parse(row: Mapping[str, str], usual: Software | None = None) -> Row:
    """The plan of a row; CannotPredict says what it lacks. ``usual``: the software where its source names none."""
    reader = _Reader({key: str(row.get(key) or "").strip() for key in READ})
    model = reader.model()
    cluster = reader.cluster()
    parts = max(reader.whole("tp") or 1, 1) * max(reader.whole("pp") or 1, 1)
    name = row_words.software_of(reader["source"], reader["zero_stage_sharding"], cluster.gpu, parts)
    ran = usual if usual is not None and not row_words.names_software(reader["source"]) else software(name)
    layout = reader.layout(model, cluster, ran)
    convention = row_words.convention_of(reader["source"], reader["recompute"])
    return Row(model, cluster, layout, ran, convention, tuple(reader.assumed))


def ports_of(gpu: Gpu) -> float:
    """GB/s per direction of all ports of a node with such GPUs, as their makers' own machines have them."""
    if gpu.name.startswith("GB"):
        return _RACK_PORTS
    return next(rate for least, rate in _PORTS if (gpu.capability or _HOPPER) >= least)


class _Reader:
    def __init__(self, row: dict[str, str]) -> None:
        self.row = row
        self.assumed: list[str] = []

    def __getitem__(self, key: str) -> str:
        return self.row[key]

    def number(self, key: str) -> float | None:
        return row_words.number_of(self.row[key])

    def whole(self, key: str) -> int | None:
        found = self.number(key)
        if found is None or not found >= 1:
            return None
        if found > _MOST.get(key, _MOST_OF_ANY):
            raise CannotPredict(f"{key} {self.row[key]} is out of range")
        return round(found)

    def model(self) -> Model:
        known = presets.find(self["model"])
        base = {key: self.whole(key) for key in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}
        if known is not None:
            return self._on(known, base)
        layers, hidden = base["layers"], base["hidden"]
        if layers is None or hidden is None:
            raise CannotPredict(f"no dimensions, and {self['model'] or 'a model without a name'} is not a preset")
        heads = base["heads"] or max(hidden // 128, 1)
        encoder = "bert" in self["model"].lower()
        if base["vocab"] is None:
            self.assumed.append("a vocabulary of GPT-2" if not encoder else "BERT's vocabulary")
        vocab = base["vocab"] or (_BERT_VOCABULARY if encoder else _VOCABULARY)
        grouped = base["kv_heads"] is not None and base["kv_heads"] < heads
        ffn = base["ffn"] or 4 * hidden
        plain = Model(self["model"] or "model", layers, hidden, heads, ffn, vocab, base["kv_heads"] or heads, hidden // heads,
                      tied=not grouped, positions="learned" if not grouped else "rotary", causal=not encoder)  # fmt: skip
        return replace(plain, gated=self._gated(plain, grouped))

    def _on(self, known: Model, given: Mapping[str, int | None]) -> Model:
        """A preset with what a row says otherwise."""
        changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if changed.get("hidden", known.hidden) != known.hidden or changed.get("heads", known.heads) != known.heads:
            changed["head_dim"] = changed.get("hidden", known.hidden) // changed.get("heads", known.heads)
            changed.setdefault("kv_heads", changed.get("heads", known.heads))
            changed.setdefault("ffn", known.ffn * changed.get("hidden", known.hidden) // known.hidden)
        return replace(known, max_positions=0, **changed)

    def _gated(self, plain: Model, grouped: bool) -> bool:
        """By the parameters where the row has them, else by the feed-forward part's size."""
        params = self.number("params")
        if params:
            both = [replace(plain, gated=True, tied=tied) for tied in (True, False)]
            return any(abs(sizes.total_params(one) / params - 1) < _NEAR for one in both)
        return grouped or plain.ffn % plain.hidden != 0

    def cluster(self) -> Cluster:
        gpu, text = gpu_called(self["gpu_type"]), self["gpu_type"]
        if gpu is None:
            gpu, text = self._silent_gpu()
        gpus = self.whole("gpus")
        if gpus is None:
            product = 1
            for key in ("dp", "tp", "pp", "cp"):
                product *= self.whole(key) or 1
            gpus = product
        node = min(gpus, _RACK if gpu.name.startswith("GB") else _NODE)
        ports = node_gb_s(self["inter_bw"], node)
        if ports is None:
            ports = ports_of(gpu)
            if gpus > node:
                self.assumed.append(f"{ports:.0f} GB/s out of a node")
        fast = gpu.fast.gb_s if gpu.fast else PCIE_X16_GB_S[gpu.pcie]
        return Cluster(gpu, gpus, node, memory_called(text, gpu), fast, ports, clock=clock_called(text, gpu))

    def _silent_gpu(self) -> tuple[Gpu, str]:
        # who trains in fp16 has no bf16
        name = "V100 SXM2 32GB" if "fp16" in self["dtype"].lower() else "A100 SXM 80GB"
        self.assumed.append(name)
        found = gpu_called(name)
        assert found is not None
        return found, name

    def layout(self, model: Model, cluster: Cluster, ran: Software) -> Layout:
        seq = self.whole("seq") or model.max_positions
        if not seq:
            raise CannotPredict("no sequence length")
        tp, pp, cp, dp = self._degrees(cluster.gpus)
        vpp = self.whole("vpp") or 1
        micro, batch = self._batch(dp, pp)
        stage, shard = row_words.zero_of(self["zero_stage_sharding"], ran.name)
        ranks = dp * cp
        shard = min(cluster.gpus_per_node, ranks) if shard < 0 else shard if shard < ranks else 0
        if shard and ranks % shard:
            shard = 0
        precision = row_words.precision_of(self["dtype"], cluster.gpu, self["source"])
        layout = Layout(
            dp=dp,
            micro_batch=micro,
            global_batch=batch,
            seq=seq,
            tp=tp,
            pp=pp,
            vpp=vpp if pp > 1 else 1,
            cp=cp,
            ep=self._experts(model, dp * tp * cp),
            sequence_parallel=tp > 1 and row_words.sequence_parallel_of(self["recompute"], ran.name),
            zero=stage,
            shard=shard if stage else 0,
            recompute=row_words.recompute_of(self["recompute"], self["source"]),
            precision=precision,
            optimizer=row_words.optimizer_of(self["source"], model),
            gradient_dtype=row_words.gradients_of(self["source"], precision),
            attention=row_words.attention_of(self["attn"], ran),
            schedule="interleaved" if vpp > 1 and pp > 1 else "1f1b",
        )
        # embedding and loss may count as a layer each
        wrong = [one for one in check(replace(model, layers=model.layers + 2), cluster, layout) if one.key in _TOLD]
        self.assumed.extend(str(one) for one in wrong)
        return layout

    def _degrees(self, gpus: int) -> tuple[int, int, int, int]:
        cp = self.whole("cp") or 1
        tp, pp, dp = self.whole("tp"), self.whole("pp"), self.whole("dp")
        if (tp is None or pp is None) and dp is not None:
            parts = max(gpus // (dp * cp), 1)
            tp = tp or max((one for one in divisors(parts) if one <= _NODE and parts % ((pp or 1) * one) == 0), default=1)
            pp = pp or max(parts // tp, 1)
            if tp * pp > 1:
                self.assumed.append(f"tp {tp}, pp {pp}")
        tp, pp = tp or 1, pp or 1
        if gpus % (tp * pp * cp):
            raise CannotPredict(f"{gpus} GPUs are not dp x tp {tp} x pp {pp} x cp {cp}")
        return tp, pp, cp, gpus // (tp * pp * cp)

    def _batch(self, dp: int, pp: int) -> tuple[int, int]:
        """Sequences of a pass and of a step; a step of whole passes."""
        micro, batch = self.whole("micro_batch"), self.whole("global_batch")
        if micro is None:
            most = 1 if pp > 1 else _MOST_SEQUENCES
            micro = max(one for one in divisors(max((batch or dp) // dp, 1)) if one <= most)
            self.assumed.append(f"micro-batch {micro}")
        if batch is None:
            self.assumed.append("one micro-batch a step")
            batch = dp * micro
        passes = -(-batch // (dp * micro))
        return micro, passes * dp * micro

    def _experts(self, model: Model, ranks: int) -> int:
        if model.moe is None:
            return 1
        told = self.whole("ep") or 1
        return max(one for one in divisors(model.moe.experts) if one <= told and ranks % one == 0)

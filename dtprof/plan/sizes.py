"""How many parameters a model has, part by part. Counts are of the whole model; nothing is split over ranks here."""

from __future__ import annotations

from dtprof.plan.spec import Model


def attention_matrices(model: Model) -> list[tuple[int, int]]:
    """(outputs, inputs) of each linear layer of attention.

    MLA as in DeepSeek-V2, section 2.1: down- and up-projections of queries (if compressed) and of keys and values.
    """
    mla = model.mla
    if mla is None:
        queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
        return [(queries + 2 * keys, model.hidden), (model.hidden, queries)]
    queries = model.heads * (mla.nope_dim + mla.rope_dim)
    first = [(mla.q_rank, model.hidden), (queries, mla.q_rank)] if mla.q_rank else [(queries, model.hidden)]
    up = model.heads * (mla.nope_dim + mla.v_dim)
    return [*first, (mla.kv_rank + mla.rope_dim, model.hidden), (up, mla.kv_rank), (model.hidden, model.heads * mla.v_dim)]


def feed_forward_matrices(model: Model, inner: int) -> list[tuple[int, int]]:
    """(outputs, inputs) of each linear layer of a feed-forward part of this inner size: two, the first doubled if gated."""
    return [(inner * (2 if model.gated else 1), model.hidden), (model.hidden, inner)]


def attention_params(model: Model) -> int:
    """Parameters of a layer's attention, biases included, norms not."""
    return _matrices(attention_matrices(model), model.biases)


def dense_params(model: Model) -> int:
    """Parameters of an ordinary feed-forward part."""
    return _matrices(feed_forward_matrices(model, model.ffn), model.biases)


def expert_params(model: Model) -> int:
    """Parameters of one expert; 0 where there are none."""
    return 0 if model.moe is None else _matrices(feed_forward_matrices(model, model.moe.ffn), model.biases)


def router_params(model: Model) -> int:
    """Parameters of a layer's router; 0 where there are no experts."""
    return 0 if model.moe is None else model.moe.experts * model.hidden


def norm_params(model: Model) -> int:
    """Parameters of a layer's two norms, of one more after MLA's compressions each."""
    each = 2 if model.biases else 1
    latent = 0 if model.mla is None else model.mla.kv_rank + model.mla.q_rank
    return each * 2 * model.hidden + latent


def layer_params(model: Model, layer: int, *, active: bool = False) -> int:
    """Parameters of one layer, counted from 0; ``active``: only those that one token visits."""
    common = attention_params(model) + norm_params(model)
    moe = model.moe
    if moe is None or not model.has_experts(layer):
        return common + dense_params(model)
    visited = moe.top_k if active else moe.experts
    return common + router_params(model) + (visited + moe.shared) * expert_params(model)


def embedding_params(model: Model) -> int:
    """Parameters of the token embedding and learned positions."""
    return (model.vocab + (model.max_positions if model.positions == "learned" else 0)) * model.hidden


def head_params(model: Model) -> int:
    """Parameters of the output matrix and the last norm; the norm alone where the matrix is the embedding."""
    return (0 if model.tied else model.vocab * model.hidden) + model.hidden * (2 if model.biases else 1)


def total_params(model: Model) -> int:
    """All parameters."""
    return _layers(model, active=False) + embedding_params(model) + head_params(model)


def active_params(model: Model) -> int:
    """Parameters that one token is multiplied by: experts that it visits, the output matrix, no embedding look-up."""
    return _layers(model, active=True) + model.vocab * model.hidden


def _layers(model: Model, *, active: bool) -> int:
    return sum(layer_params(model, layer, active=active) for layer in range(model.layers))


def _matrices(shapes: list[tuple[int, int]], biases: bool) -> int:
    return sum(out * (inner + (1 if biases else 0)) for out, inner in shapes)

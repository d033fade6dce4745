"""The family's costs: FLOPs of a prefill, and bytes of its weights."""

import torch

from tasuki.model.config import MoeShape
from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.layer_kind import LayerKind
from tasuki.model.weights.layers import tensors
from tasuki.model.weights.source import TensorSource

from .assembly import Qwen4ExpAssembler
from .config import Qwen4ExpConfig
from .weights import ModelWeights


def prefill_flops(config: Qwen4ExpConfig) -> PrefillFlops:
    """Return the FLOPs of a prefill. The pairs are those of an index query with a block. Attention
    reads as many tokens as a query chooses, so it costs the same for every token of a long
    prompt."""
    sparse = config.layer_kinds.count(LayerKind.FULL)
    recurrent = config.layers - sparse
    products = sparse * _sparse_products(config) + recurrent * _recurrent_products(config)
    products += config.layers * (2 * _connection_products(config) + _experts_products(config))
    for table in config.tables:
        products += table.width * (config.stream_width + config.hidden)
    delta_rule = 8.0 * recurrent * config.value_heads * config.value_dim * config.key_dim
    queries = config.query_heads * config.head_dim
    attention = 4.0 * sparse * queries * config.index.most_dense
    index = config.index
    scores = 2.0 * sparse * index.heads * index.dim / index.ratio
    return PrefillFlops(2.0 * products + delta_rule + attention, scores)


def _sparse_products(config: Qwen4ExpConfig) -> int:
    """Return the multiplications of a sparse mixer's projections for one token."""
    queries = config.query_heads * config.head_dim
    attention = 3 * queries + 2 * config.kv_heads * config.head_dim
    return config.hidden * (attention + (config.index.heads + 1) * config.index.dim)


def _recurrent_products(config: Qwen4ExpConfig) -> int:
    values = config.value_heads * config.value_dim
    return config.hidden * (config.conv_channels + 2 * values + 2 * config.value_heads)


def _connection_products(config: Qwen4ExpConfig) -> int:
    return config.stream_width * (2 * config.streams.rank + config.streams.count)


def _experts_products(config: Qwen4ExpConfig) -> int:
    shape = config.feed_forward
    assert isinstance(shape, MoeShape)
    chosen = shape.chosen * shape.intermediate + shape.shared_intermediate
    return config.hidden * (3 * chosen + shape.experts)


def weight_sizes(config: Qwen4ExpConfig, dtype: torch.dtype, source: TensorSource) -> WeightSizes:
    """Count and return the bytes of a model's weights. Tables are no part of the total. source:
    shapes of the stored tensors, without memory. Raises WeightsError from the source."""
    shape = config.feed_forward
    assert isinstance(shape, MoeShape)
    weights = Qwen4ExpAssembler(config, source, dtype, "meta").whole()
    every = [layer.experts for layer in weights.layers]
    routed = sum(experts.gate_up.nbytes + experts.down.nbytes for experts in every)
    tables = sum(table.nbytes for table in weights.tables)
    total = sum(tensor.nbytes for tensor in tensors(weights)) - tables
    looked_up = 0 if config.tied else weights.embedding.nbytes
    if config.tied:
        total -= weights.head.nbytes
    dense = total - looked_up - routed - _of_guesses(weights)
    return WeightSizes(total, dense, routed, shape.experts, shape.chosen, tables)


def _of_guesses(weights: ModelWeights) -> int:
    """Return the bytes of the draft layer's weights read only to draft a token: experts, the output
    product and the last mixer."""
    draft = weights.draft
    if draft is None:
        return 0
    read = (draft.layer.experts, draft.layer.experts_connection, draft.final)
    parts = sum(tensor.nbytes for part in read for tensor in tensors(part))
    return parts + draft.sparse.attention.out_proj.nbytes

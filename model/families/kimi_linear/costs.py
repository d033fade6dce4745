"""The family's costs: FLOPs of a prefill, and bytes of its weights."""

import torch

from tasuki.model.costs import PrefillFlops, WeightSizes
from tasuki.model.weights.layers import tensors
from tasuki.model.weights.source import TensorSource

from .config import KimiConfig, Mixer
from .weights import ExpertWeights, assemble


def prefill_flops(config: KimiConfig) -> PrefillFlops:
    """Return the FLOPs of a prefill. Pairs of tokens cost what latent attention computes: products
    of whole cached rows."""
    kda, latent = (config.mixers.count(kind) for kind in (Mixer.KDA, Mixer.LATENT))
    shape = config.latent
    products = 2.0 * (kda * _kda(config) + latent * _latent(config) + _feed_forwards(config))
    delta_rule = 8.0 * kda * config.kda_heads * config.kda_dim**2
    pair = 2.0 * latent * shape.heads * (shape.row + shape.rank)
    return PrefillFlops(products + delta_rule, pair)


def _kda(config: KimiConfig) -> int:
    """Return the multiplications of a token in the products of a KDA layer."""
    width, rank = config.kda_width, config.gate_rank
    return config.hidden * (4 * width + 2 * rank + config.kda_heads) + 2 * rank * width


def _latent(config: KimiConfig) -> int:
    """Return the multiplications of a token in the products of a latent attention layer."""
    shape = config.latent
    head = shape.query_dim + shape.value_dim
    expansion = shape.rank * (shape.key_dim + shape.value_dim)
    return config.hidden * (shape.heads * head + shape.row) + shape.heads * expansion


def _feed_forwards(config: KimiConfig) -> int:
    """Return the multiplications of a token in the feed-forwards of all layers."""
    experts, dense = config.experts, config.dense_layers
    chosen = experts.chosen * experts.intermediate + experts.shared
    of_experts = config.hidden * (3 * chosen + experts.experts)
    of_dense = 3 * config.hidden * config.intermediate
    return dense * of_dense + (config.layers - dense) * of_experts


def weight_sizes(config: KimiConfig, dtype: torch.dtype, source: TensorSource) -> WeightSizes:
    """Count and return the bytes of a model's weights. dtype: of unquantised weights. source:
    shapes of the stored tensors, without memory. Raises WeightsError from the source."""
    weights = assemble(config, source, dtype, "meta")
    routed = sum(
        layer.mlp.gate_up.nbytes + layer.mlp.down.nbytes
        for layer in weights.layers
        if isinstance(layer.mlp, ExpertWeights)
    )
    total = sum(tensor.nbytes for tensor in tensors(weights))
    if config.tied:
        total -= weights.head.nbytes
    looked_up = 0 if config.tied else weights.embedding.nbytes
    experts = config.experts
    return WeightSizes(total, total - looked_up - routed, routed, experts.experts, experts.chosen)

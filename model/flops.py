"""What a prefill costs in arithmetic: the unit in which a cache hit is worth something."""

from dataclasses import dataclass

from .config import DenseShape, ModelConfig


@dataclass(frozen=True)
class PrefillFlops:
    """linear: FLOPs a token; quadratic: FLOPs of a token for each token before it."""

    linear: float
    quadratic: float

    def of(self, tokens: int) -> float:
        """FLOPs to prefill that many tokens from nothing."""
        return self.linear * tokens + self.quadratic * tokens * tokens / 2

    @staticmethod
    def for_model(config: ModelConfig) -> "PrefillFlops":
        full = sum(kind.value == "full_attention" for kind in config.layer_kinds)
        gdn = config.layers - full
        queries = config.query_heads * config.head_dim
        values = config.value_heads * config.value_dim
        attention = config.hidden * (3 * queries + 2 * config.kv_heads * config.head_dim)
        mixer = config.hidden * (config.conv_channels + 2 * values + 2 * config.value_heads)
        feed_forward = config.layers * _feed_forward(config)
        products = 2.0 * (full * attention + gdn * mixer + feed_forward)
        delta_rule = 8.0 * gdn * config.value_heads * config.value_dim * config.key_dim
        return PrefillFlops(products + delta_rule, 4.0 * queries * full)


def _feed_forward(config: ModelConfig) -> int:
    shape = config.feed_forward
    if isinstance(shape, DenseShape):
        return 3 * config.hidden * shape.intermediate
    chosen = shape.chosen * shape.intermediate + shape.shared_intermediate
    return config.hidden * (3 * chosen + shape.experts)

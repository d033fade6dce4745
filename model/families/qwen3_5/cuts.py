"""The family's division among ranks: heads and widths, and slices of published weights.

Pure. Attention is divided by heads. A GDN layer is divided by key heads with their value heads. A
feed-forward is divided by its inner width, and the head of the model by vocabulary. Published value
head j uses key head j // (value heads / key heads). So equal runs of neighbouring heads keep a key
head with its value heads. A query head's rows include its gate.
"""

from dataclasses import dataclass, replace

from tasuki.model.config import DeltaNetConfig, DenseShape, MoeShape
from tasuki.model.weights.shard import (
    EXPERT_NAME,
    Cut,
    ExpertCut,
    Shard,
    UnfitSize,
    cut_segments,
    cuts_vocabulary,
    module_and_leaf,
    unknown_weight,
)

_WHOLE = frozenset(
    {
        *("embed_tokens", "norm", "q_norm", "k_norm", "input_layernorm"),
        *("post_attention_layernorm", "gate", "shared_expert_gate", "fc"),
        *("pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    }
)
"""Names of weights present whole on every rank. A norm covers one head or the whole residual
stream. Routers must choose alike on every rank. An embedding is only looked up."""


@dataclass(frozen=True)
class Qwen35Cuts:
    """`RankCuts` of one whole model."""

    config: DeltaNetConfig

    def part(self, shard: Shard) -> DeltaNetConfig:
        config = self.config
        self._check_fits(shard)
        vocabulary = shard.of(config.vocab) if cuts_vocabulary(config, shard) else None
        return replace(
            config,
            query_heads=len(shard.of(config.query_heads)),
            kv_heads=len(shard.of(config.kv_heads)),
            key_heads=len(shard.of(config.key_heads)),
            value_heads=len(shard.of(config.value_heads)),
            first_value_head=shard.of(config.value_heads).start,
            feed_forward=_part_of_feed_forward(shard, config.feed_forward),
            head_rows=vocabulary,
        )

    def fitting_sizes(self, experts: ExpertCut) -> list[int]:
        return [
            ranks
            for ranks in range(1, self.config.query_heads + 1)
            if _misfit(self.config, Shard(0, ranks, experts)) is None
        ]

    def _check_fits(self, shard: Shard) -> None:
        """Raise UnfitSize if the model cannot be divided among the shard's number of ranks. A dense
        model cannot be divided by expert."""
        is_dense = isinstance(self.config.feed_forward, DenseShape)
        if shard.experts is ExpertCut.BY_EXPERT and is_dense:
            raise UnfitSize(
                "the model has no experts to share out: leave --expert-parallel out, and it is cut "
                "as every dense model is"
            )
        misfit = _misfit(self.config, shard)
        if misfit is None:
            return
        by_width = shard.experts is ExpertCut.BY_WIDTH and not is_dense
        by_expert = self.fitting_sizes(ExpertCut.BY_EXPERT) if by_width else []
        raise UnfitSize.of(shard.ranks, misfit, self.fitting_sizes(shard.experts), by_expert)

    def cut(self, shard: Shard, name: str) -> Cut | None:
        config = self.config
        module, leaf = module_and_leaf(name)
        head, keys, values = config.head_dim, config.key_heads, config.value_heads
        if leaf in _WHOLE or (leaf == "lm_head" and not cuts_vocabulary(config, shard)):
            return None
        if leaf == "lm_head":
            return cut_segments(shard, 0, (config.vocab, config.vocab))
        if module == "linear_attn":
            value = (values, values * config.value_dim)
            key = (keys, keys * config.key_dim)
            return {
                "in_proj_qkv": cut_segments(shard, 0, key, key, value),
                "conv1d": cut_segments(shard, 0, key, key, value),
                "in_proj_z": cut_segments(shard, 0, value),
                "in_proj_b": cut_segments(shard, 0, (values, values)),
                "in_proj_a": cut_segments(shard, 0, (values, values)),
                "A_log": cut_segments(shard, 0, (values, values)),
                "dt_bias": cut_segments(shard, 0, (values, values)),
                "out_proj": cut_segments(shard, 1, value),
            }.get(leaf) or unknown_weight(name)
        if module == "self_attn":
            query = config.query_heads
            kv = (config.kv_heads, config.kv_heads * head)
            return {
                "q_proj": cut_segments(shard, 0, (query, 2 * query * head)),
                "k_proj": cut_segments(shard, 0, kv),
                "v_proj": cut_segments(shard, 0, kv),
                "o_proj": cut_segments(shard, 1, (query, query * head)),
            }.get(leaf) or unknown_weight(name)
        shape = config.feed_forward
        if isinstance(shape, DenseShape):
            return _of_width(shard, leaf, shape.intermediate) or unknown_weight(name)
        if module == "shared_expert":
            return _of_width(shard, leaf, shape.shared_intermediate) or unknown_weight(name)
        return _of_experts(shape, shard, name, leaf)

    def is_elsewhere(self, shard: Shard, name: str) -> bool:
        shape = self.config.feed_forward
        if shard.experts is not ExpertCut.BY_EXPERT or isinstance(shape, DenseShape):
            return False
        found = EXPERT_NAME.search(name)
        return found is not None and int(found[1]) not in shard.of(shape.experts)


def _part_of_feed_forward(shard: Shard, shape: DenseShape | MoeShape) -> DenseShape | MoeShape:
    if isinstance(shape, DenseShape):
        return DenseShape(len(shard.of(shape.intermediate)))
    shared = len(shard.of(shape.shared_intermediate))
    if shard.experts is ExpertCut.BY_EXPERT:
        return replace(shape, shared_intermediate=shared, held=shard.of(shape.experts))
    width = len(shard.of(shape.intermediate))
    return replace(shape, intermediate=width, shared_intermediate=shared)


def _misfit(config: DeltaNetConfig, shard: Shard) -> str | None:
    """Return a text naming the first size not divisible among the ranks; None without one."""
    ranks, shape = shard.ranks, config.feed_forward
    counts = {"query heads": config.query_heads, "key heads of GDN layers": config.key_heads}
    if isinstance(shape, DenseShape):
        counts["columns of the feed-forward"] = shape.intermediate
    else:
        counts["columns of the shared expert"] = shape.shared_intermediate
        if shard.experts is ExpertCut.BY_EXPERT:
            counts["experts"] = shape.experts
        else:
            counts["columns of an expert"] = shape.intermediate
    for name, count in counts.items():
        if count % ranks:
            return f"it has {count} {name}"
    if config.kv_heads % ranks and ranks % config.kv_heads:
        return f"it has {config.kv_heads} heads of keys and values"
    return None


def _of_experts(shape: MoeShape, shard: Shard, name: str, leaf: str) -> Cut | None:
    fused = EXPERT_NAME.search(name) is None
    if shard.experts is ExpertCut.BY_EXPERT:
        return cut_segments(shard, 0, (shape.experts, shape.experts)) if fused else None
    width = shape.intermediate
    if leaf == "gate_up_proj" and fused:
        return cut_segments(shard, 1, (width, width), (width, width))
    if leaf == "down_proj" and fused:
        return cut_segments(shard, 2, (width, width))
    return _of_width(shard, leaf, width) or unknown_weight(name)


def _of_width(shard: Shard, leaf: str, width: int) -> Cut | None:
    if leaf in ("gate_proj", "up_proj"):
        return cut_segments(shard, 0, (width, width))
    return cut_segments(shard, 1, (width, width)) if leaf == "down_proj" else None

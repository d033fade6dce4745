"""The family's division among ranks: heads and widths, and slices of published weights.

Pure. KDA and latent attention are divided by runs of heads. Latents belong to no head, so every
rank computes and caches all of them. Experts are divided by inner width or by expert, other
feed-forwards by width, and the head of the model by vocabulary.
"""

from dataclasses import dataclass, replace

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

from .config import KimiConfig, Mixer

_WHOLE = frozenset(
    {
        *("embed_tokens", "norm", "input_layernorm", "post_attention_layernorm"),
        *("f_a_proj", "g_a_proj", "o_norm", "kv_a_proj_with_mqa", "kv_a_layernorm"),
        *("gate", "e_score_correction_bias"),
    }
)
"""Names of weights present whole on every rank. Routers must choose alike on every rank."""
_ROWS = frozenset({"gate_proj", "up_proj", "w1", "w3"})
_COLUMNS = frozenset({"down_proj", "w2"})


@dataclass(frozen=True)
class KimiCuts:
    """`RankCuts` of one whole model."""

    config: KimiConfig

    def part(self, shard: Shard) -> KimiConfig:
        self._check_fits(shard)
        config, experts = self.config, self.config.experts
        own = replace(experts, shared=len(shard.of(experts.shared)))
        if shard.experts is ExpertCut.BY_EXPERT:
            own = replace(own, held=shard.of(experts.experts))
        else:
            own = replace(own, intermediate=len(shard.of(experts.intermediate)))
        return replace(
            config,
            kda_heads=len(shard.of(config.kda_heads)),
            first_kda_head=shard.of(config.kda_heads).start,
            latent=replace(config.latent, heads=len(shard.of(config.latent.heads))),
            experts=own,
            intermediate=len(shard.of(config.intermediate)),
            head_rows=shard.of(config.vocab) if cuts_vocabulary(config, shard) else None,
        )

    def fitting_sizes(self, experts: ExpertCut) -> list[int]:
        most = min(self.config.kda_heads, self.config.latent.heads)
        return [
            ranks for ranks in range(1, most + 1) if self._misfit(Shard(0, ranks, experts)) is None
        ]

    def cut(self, shard: Shard, name: str) -> Cut | None:
        config = self.config
        module, leaf = module_and_leaf(name)
        if leaf in _WHOLE or (leaf == "lm_head" and not cuts_vocabulary(config, shard)):
            return None
        if leaf == "lm_head":
            return cut_segments(shard, 0, (config.vocab, config.vocab))
        if module == "self_attn":
            kda = config.mixers[_layer_of(name)] is Mixer.KDA
            found = self._of_kda(shard, leaf) if kda else self._of_latent(shard, leaf)
            return found or unknown_weight(name)
        if module == "experts":
            if shard.experts is ExpertCut.BY_EXPERT:
                return None
            return _of_width(shard, leaf, config.experts.intermediate) or unknown_weight(name)
        width = config.experts.shared if module == "shared_experts" else config.intermediate
        return _of_width(shard, leaf, width) or unknown_weight(name)

    def is_elsewhere(self, shard: Shard, name: str) -> bool:
        if shard.experts is not ExpertCut.BY_EXPERT:
            return False
        found = EXPERT_NAME.search(name)
        return found is not None and int(found[1]) not in shard.of(self.config.experts.experts)

    def _of_kda(self, shard: Shard, leaf: str) -> Cut | None:
        heads, width = self.config.kda_heads, self.config.kda_width
        if leaf == "A_log":
            return cut_segments(shard, 2, (heads, heads))
        if leaf == "b_proj":
            return cut_segments(shard, 0, (heads, heads))
        if leaf == "o_proj":
            return cut_segments(shard, 1, (heads, width))
        rows = {"q_proj", "k_proj", "v_proj", "q_conv1d", "k_conv1d", "v_conv1d"}
        by_head = leaf in rows | {"f_b_proj", "g_b_proj", "dt_bias"}
        return cut_segments(shard, 0, (heads, width)) if by_head else None

    def _of_latent(self, shard: Shard, leaf: str) -> Cut | None:
        shape = self.config.latent
        heads = shape.heads
        return {
            "q_proj": cut_segments(shard, 0, (heads, heads * shape.query_dim)),
            "kv_b_proj": cut_segments(shard, 0, (heads, heads * (shape.key_dim + shape.value_dim))),
            "o_proj": cut_segments(shard, 1, (heads, heads * shape.value_dim)),
        }.get(leaf)

    def _check_fits(self, shard: Shard) -> None:
        misfit = self._misfit(shard)
        if misfit is None:
            return
        by_width = shard.experts is ExpertCut.BY_WIDTH
        by_expert = self.fitting_sizes(ExpertCut.BY_EXPERT) if by_width else []
        raise UnfitSize.of(shard.ranks, misfit, self.fitting_sizes(shard.experts), by_expert)

    def _misfit(self, shard: Shard) -> str | None:
        """Return a text naming the first size not divisible among the ranks; None if the model can
        be divided."""
        config, experts = self.config, self.config.experts
        counts = {
            "heads of KDA layers": config.kda_heads,
            "heads of latent attention": config.latent.heads,
            "columns of the shared expert": experts.shared,
        }
        if config.dense_layers:
            counts["columns of the dense feed-forward"] = config.intermediate
        if shard.experts is ExpertCut.BY_EXPERT:
            counts["experts"] = experts.experts
        else:
            counts["columns of an expert"] = experts.intermediate
        for name, count in counts.items():
            if count % shard.ranks:
                return f"it has {count} {name}"
        return None


def _of_width(shard: Shard, leaf: str, width: int) -> Cut | None:
    if leaf in _ROWS:
        return cut_segments(shard, 0, (width, width))
    return cut_segments(shard, 1, (width, width)) if leaf in _COLUMNS else None


def _layer_of(name: str) -> int:
    """Return the layer's index in a name such as layers.3.self_attn.q_proj.weight."""
    return int(name.removeprefix("layers.").partition(".")[0])

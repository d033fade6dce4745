"""The family's division among ranks: that of Qwen3.5, with two projections cut by key head."""

from dataclasses import dataclass

from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.weights.shard import Cut, Shard, cut_segments, module_and_leaf


@dataclass(frozen=True)
class Qwen3NextCuts(Qwen35Cuts):
    """`RankCuts` of one whole model."""

    def cut(self, shard: Shard, name: str) -> Cut | None:
        config = self.config
        keys, values = config.key_heads, config.value_heads
        rows = {
            "in_proj_qkvz": 2 * keys * config.key_dim + 2 * values * config.value_dim,
            "in_proj_ba": 2 * values,
        }
        leaf = module_and_leaf(name)[1]
        if leaf in rows:
            return cut_segments(shard, 0, (keys, rows[leaf]))
        return super().cut(shard, name)

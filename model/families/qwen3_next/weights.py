"""The family's weights: those of Qwen3.5, after the rows of two projections have changed places.

Published rows of `in_proj_qkvz` are grouped by key head: [q, k, its values' v, their z]. Those of
`in_proj_ba` are [its values' b, their a]. The operators read [q | k | v | z | b | a], each by head.
Ranks cut both projections by key head.
"""

from dataclasses import dataclass

import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.qwen3_5.weights import Assembler, ModelWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.shard import Cut, Shard, cut_segments, module_and_leaf
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress


def assemble(
    config: DeltaNetConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> ModelWeights:
    """Read every tensor needed by the config from the source, and return the weights; see
    Family.assemble(). Raises WeightsError."""
    return _Assembler(config, source, dtype, torch.device(device)).model(progress)


def by_part(heads: int, sizes: tuple[int, ...]) -> list[range]:
    """Return the runs of rows that order a matrix by part. heads: number of groups of rows; sizes:
    rows of each part in a group, in stored order."""
    group = sum(sizes)
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [
        range(head * group + start, head * group + start + size)
        for start, size in zip(starts, sizes, strict=True)
        for head in range(heads)
    ]


class _Assembler(Assembler):
    def gdn_projections(self, prefix: str) -> list[Matrix]:
        config = self.config
        heads, hidden = config.key_heads, config.hidden
        ratio = config.value_heads // heads
        values = ratio * config.value_dim
        parts = {
            "qkvz": (config.key_dim, config.key_dim, values, values),
            "ba": (ratio, ratio),
        }
        return [
            self.matrix(f"{prefix}.in_proj_{name}.weight", heads * sum(sizes), hidden).runs(
                by_part(heads, sizes)
            )
            for name, sizes in parts.items()
        ]


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

"""The family's division among ranks: heads, experts and slices of published weights.

Pure. Mixers and experts are divided as those of Qwen3.5. Everything else is on every rank, so that
all ranks have the same streams, index keys and choices, bit for bit: hyper-connections, the index,
and the n-gram table with its layer.
"""

from dataclasses import dataclass

from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.weights.shard import Cut, Shard, module_and_leaf

from .config import Qwen4ExpConfig

_WHOLE_LEAVES = frozenset(
    {
        *("hc_norm", "input_mix_weight_down", "input_mix_weight_up", "block_inject_weight"),
        *("index_qk_proj", "q_layernorm", "k_layernorm", "fc_embedding", "fc_hidden"),
    }
)


@dataclass(frozen=True)
class Qwen4ExpCuts(Qwen35Cuts):
    """`RankCuts` of one whole model."""

    config: Qwen4ExpConfig

    def part(self, shard: Shard) -> Qwen4ExpConfig:
        found = super().part(shard)
        assert isinstance(found, Qwen4ExpConfig)
        return found

    def cut(self, shard: Shard, name: str) -> Cut | None:
        if module_and_leaf(name)[1] in _WHOLE_LEAVES or ".ple." in name:
            return None
        return super().cut(shard, name)

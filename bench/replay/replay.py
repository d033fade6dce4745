"""One replay: a trace, a model's sizes, a budget and a policy become an outcome."""

from typing import Any

from tasuki.model.flops import PrefillFlops
from tasuki.model.known_models import published_or_folder
from tasuki.pycache._cpp_cache import PrefixCache, TreeConfig
from tasuki.pycache.layout import CacheLayout

from .player import Player
from .prompts import Prompts
from .report import outcome
from .rules import ReplayRules, rules_of
from .trace import Trace

_GIB = 1 << 30


def replay(
    trace: Trace, model: str, gib: float, policy: str, rules: ReplayRules | None = None
) -> dict[str, Any]:
    """`model`: a published name or a folder; `gib`: bytes of the cache, GiB; `rules`: the policy's
    own by default. Raises ReplayError, ModelConfigError."""
    config = published_or_folder(model)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    flops = PrefillFlops.for_model(config)
    prompts = Prompts(trace)
    tree = PrefixCache(tree_config(layout, flops, gib, policy))
    tally = Player(tree, flops, rules or rules_of(policy, trace)).play(trace, prompts)
    return outcome(trace, prompts, model, gib, policy, tally)


def tree_config(layout: CacheLayout, flops: PrefillFlops, gib: float, policy: str) -> TreeConfig:
    slabs = max(1, int(gib * _GIB) // layout.slab_bytes)
    return TreeConfig(
        slabs=slabs,
        blocks_per_slab=layout.blocks_per_slab,
        pages_per_slab=layout.pages_per_slab,
        max_ghost_nodes=max(4096, 8 * slabs),
        policy=policy,
        attention_cost=flops.quadratic / flops.linear,
    )

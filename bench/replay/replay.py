"""One replay: a trace, a model's sizes, a budget and a policy become an outcome."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.model.costs import PrefillFlops
from tasuki.model.known_models import published_or_folder, with_draft_layer
from tasuki.pycache._cpp_cache import PrefixCache, TierConfig, TreeConfig
from tasuki.pycache.layout import CacheLayout

from .player import Player
from .prompts import Prompts
from .report import outcome
from .rules import ReplayRules, rules_of
from .tier_report import tier_outcome
from .tiers import Tiers
from .trace import Trace
from .transfers import Transfers

_GIB = 1 << 30


@dataclass(frozen=True)
class CachedDtypes:
    """As a layout names them: of keys and values, and of recurrent states."""

    kv: str = "bfloat16"
    state: str = "float32"


PLAIN_DTYPES = CachedDtypes()


def replay(
    trace: Trace,
    model: str,
    gib: float,
    policy: str,
    rules: ReplayRules | None = None,
    *,
    draft_layer: str = "off",
    dtypes: CachedDtypes = PLAIN_DTYPES,
) -> dict[str, Any]:
    """`model`: a published name or a folder; `gib`: bytes of the cache, GiB; `rules`: the policy's
    own by default; `draft_layer`: as of tasuki serve; `dtypes`: of what is cached. Raises
    ReplayError, ModelConfigError, WeightsError."""
    config = with_draft_layer(published_or_folder(model), model, draft_layer)
    layout = config.cache_layout(dtypes.kv, "bfloat16", dtypes.state)
    flops = PrefillFlops.for_model(config)
    prompts = Prompts(trace)
    tree = PrefixCache(tree_config(layout, flops, gib, policy))
    tally = Player(tree, flops, rules or rules_of(policy, trace)).play(trace, prompts)
    return outcome(trace, prompts, model, gib, policy, tally)


def replay_tiers(
    trace: Trace,
    model: str,
    tiers: Tiers,
    policy: str,
    rules: ReplayRules | None = None,
    *,
    draft_layer: str = "off",
    dtypes: CachedDtypes = PLAIN_DTYPES,
) -> dict[str, Any]:
    """The same with memory below the arena; what moves, and how often, is in the outcome too."""
    config = with_draft_layer(published_or_folder(model), model, draft_layer)
    layout = config.cache_layout(dtypes.kv, "bfloat16", dtypes.state)
    flops = PrefillFlops.for_model(config)
    prompts = Prompts(trace)
    shape = tree_config(layout, flops, tiers.arena, policy, tiers.configs(layout, flops))
    tree = PrefixCache(shape)
    transfers = Transfers(tree, layout, flops, tiers.links)
    player = Player(tree, flops, rules or rules_of(policy, trace), transfers)
    tally = player.play(trace, prompts)
    result = outcome(trace, prompts, model, tiers.arena, policy, tally)
    return result | tier_outcome(trace, layout, tiers, tree.stats())


def tree_config(
    layout: CacheLayout,
    flops: PrefillFlops,
    gib: float,
    policy: str,
    tiers: Sequence[TierConfig] = (),
) -> TreeConfig:
    slabs = max(1, int(gib * _GIB) // layout.slab_bytes)
    return TreeConfig(
        slabs=slabs,
        blocks_per_slab=layout.blocks_per_slab,
        pages_per_slab=layout.pages_per_slab,
        max_ghost_nodes=max(4096, 8 * (slabs + sum(tier.slabs for tier in tiers))),
        policy=policy,
        attention_cost=flops.quadratic / flops.linear,
        tiers=list(tiers),
    )

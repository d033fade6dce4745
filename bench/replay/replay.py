"""One replay: a trace, a model's sizes, a cache size and a policy give an outcome, as JSON and as
text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.model.costs import PrefillFlops
from tasuki.model.families.registry import family_of, published_or_folder, with_draft_layer
from tasuki.pycache._cpp_cache import PrefixCache, TierConfig, TreeConfig, TreeStats
from tasuki.pycache.layout import CacheLayout

from .player import Player, ReplayRules, Tally, rules_of
from .prompts import Prompts
from .tiers import GIB, Tiers, Transfers
from .trace import Trace


def outcome(
    trace: Trace, prompts: Prompts, model: str, gib: float, policy: str, tally: Tally
) -> dict[str, Any]:
    """Return the results by name. Shares are of prompt tokens; flops_saved is a share of prefill
    FLOPs. usable and causes sum to 1. gib: size of the cache, GiB."""
    total = tally.prompt_tokens
    return {
        "trace": trace.name,
        "model": model,
        "gb": gib,
        "policy": policy,
        "requests": tally.requests,
        "refused": tally.refused,
        "recovered_answers": prompts.recovered_answers,
        "prompt_tokens": total,
        "hit_rate": tally.usable_tokens / total,
        "token_hit": tally.usable_tokens / total,
        "flops_saved": tally.flops_saved / tally.flops,
        "requests_per_second": tally.requests / max(tally.cpu_seconds, 1e-9),
        "causes": {name: tokens / total for name, tokens in tally.causes.items()},
        "hit_from": {name: tokens / total for name, tokens in tally.sources.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['trace']}  {result['model']}  {result['gb']:g} GB  policy {result['policy']}",
        f"  requests       {result['requests']}  ({result['refused']} refused, "
        f"{result['recovered_answers']} answers recovered)",
        f"  token_hit      {result['token_hit']:.4f}",
        f"  flops_saved    {result['flops_saved']:.4f}",
        f"  requests/s     {result['requests_per_second']:.0f}",
        "  prompt tokens, 100 %",
        _bar("usable", result["token_hit"]),
        *(_bar(name, share) for name, share in result["causes"].items()),
    ]
    return "\n".join(lines) + "\n"


def _bar(name: str, share: float) -> str:
    return f"    {name:<20}{share:7.2%}  {'#' * round(share * 40)}"


_DAY_SECONDS = 86_400


def tier_outcome(
    trace: Trace, layout: CacheLayout, tiers: Tiers, stats: TreeStats
) -> dict[str, Any]:
    """Return the bytes held and moved, by tier. The disk also has the share of its size overwritten
    in a day at the trace's rate, the unit of drive endurance ratings."""
    first, last = trace.requests[0].timestamp_ms, trace.requests[-1].timestamp_ms
    seconds = max((last - first) / 1000, 1e-3)
    result: dict[str, Any] = {
        "tiers": {"arena": tiers.arena},
        "loaded_bytes": {},
        "written_bytes": {},
        "dropped_bytes": {},
        "used_bytes": {},
        "refused_writes": {},
        "waiting_writes": stats.waiting_writes,
        "seconds": seconds,
    }
    for link, size, held in zip(tiers.links, tiers.below, stats.tiers, strict=True):
        result["tiers"][link.tier] = size
        result["refused_writes"][link.tier] = held.refused_writes
        for name, pages, slots in (
            ("loaded_bytes", held.loaded_pages, held.loaded_slots),
            ("written_bytes", held.written_pages, held.written_slots),
            ("dropped_bytes", held.dropped_pages, held.dropped_slots),
            ("used_bytes", held.pages.tree, held.slots.tree),
        ):
            result[name][link.tier] = pages * layout.page_bytes + slots * layout.slot_bytes
        if link.tier == "disk":
            written = result["written_bytes"]["disk"] / seconds * _DAY_SECONDS
            result["disk_drive_writes_per_day"] = written / (size * GIB)
    return result


def tier_text(result: dict[str, Any]) -> str:
    """Return text lines about the tiers, to append to the replay's own table."""
    lines = ["  GiB            size      used   written    loaded   written GB/s"]
    for tier, size in result["tiers"].items():
        if tier == "arena":
            lines.append(f"    arena   {size:11.0f}")
            continue
        used, written, loaded = (
            result[name][tier] / GIB for name in ("used_bytes", "written_bytes", "loaded_bytes")
        )
        rate = result["written_bytes"][tier] / 1e9 / result["seconds"]
        lines.append(
            f"    {tier:<8}{size:11.0f}{used:10.1f}{written:10.1f}{loaded:10.1f}{rate:11.2f}"
        )
    if "disk_drive_writes_per_day" in result:
        lines.append(f"  drive writes a day  {result['disk_drive_writes_per_day']:.2f}")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class CachedDtypes:
    """The dtypes of cached data, by their names in a cache layout. kv: dtype of keys and values.
    state: dtype of recurrent states."""

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
    """Replay a trace with an arena and no lower tiers. gib: size of the arena, GiB. Other arguments
    and errors are those of replay_tiers()."""
    one = Tiers(gib, ())
    return replay_tiers(trace, model, one, policy, rules, draft_layer=draft_layer, dtypes=dtypes)


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
    """Replay a trace, and return its outcome. `model`: a published name or a folder. `rules`: rules
    for storing states; None: the policy's own. `draft_layer`: like in tasuki serve. `dtypes`:
    dtypes of the cache. With tiers below the arena, the outcome includes the number and bytes of
    copies. Raises ReplayError, ModelConfigError, WeightsError."""
    config = with_draft_layer(published_or_folder(model), model, draft_layer)
    layout = config.cache_layout(dtypes.kv, "bfloat16", dtypes.state)
    flops = family_of(config).prefill_flops(config)
    prompts = Prompts(trace)
    below = tiers.configs(layout, flops)
    tree = PrefixCache(tree_config(layout, flops, tiers.arena, policy, below))
    transfers = Transfers(tree, layout, flops, tiers.links) if below else None
    player = Player(tree, flops, rules or rules_of(policy, trace), transfers)
    tally = player.play(trace, prompts)
    result = outcome(trace, prompts, model, tiers.arena, policy, tally)
    return result | (tier_outcome(trace, layout, tiers, tree.stats()) if below else {})


def tree_config(
    layout: CacheLayout,
    flops: PrefillFlops,
    gib: float,
    policy: str,
    tiers: Sequence[TierConfig] = (),
) -> TreeConfig:
    slabs = max(1, int(gib * GIB) // layout.slab_bytes)
    return TreeConfig(
        slabs=slabs,
        blocks_per_slab=layout.blocks_per_slab,
        pages_per_slab=layout.pages_per_slab,
        max_ghost_nodes=max(4096, 8 * (slabs + sum(tier.slabs for tier in tiers))),
        policy=policy,
        attention_cost=flops.quadratic / flops.linear,
        tiers=list(tiers),
    )

"""What a load from a tier below the arena changed of a prompt's hit.

Pure. Invariant: usable + causes stay the prompt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tasuki.engine.messages import HitBreakdown
from tasuki.engine.messages.evictions import CAUSES_IN_ORDER, LOAD_FAILED
from tasuki.pycache._cpp_cache import TierLoad
from tasuki.pycache.layout import PAGE_TOKENS


def brought_by(load: TierLoad, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """By tier, tokens whose KV it brings; the last one brings the state. names: of the tiers."""
    state_from = load.state[0]
    pages = Counter(tier for tier, *_ in load.pages)
    others = sorted(tier for tier in pages if tier != state_from)
    return tuple((names[tier], pages[tier] * PAGE_TOKENS) for tier in (*others, state_from))


def with_loaded(
    hit: HitBreakdown, before: int, brought: tuple[tuple[str, int], ...]
) -> HitBreakdown:
    """Of a prompt whose load has landed. before: tokens that were usable without it. brought: as of
    brought_by(). KV that stood already became usable by the state, where that is from."""
    left = hit.usable_tokens - before
    loaded = {}
    for tier, tokens in brought[:-1]:
        loaded[tier] = min(tokens, left)
        left -= min(tokens, left)
    if left > 0:
        loaded[brought[-1][0]] = left
    return replace(hit, loaded={name: tokens for name, tokens in loaded.items() if tokens > 0})


def with_failed(hit: HitBreakdown, boundary: int | None) -> HitBreakdown:
    """boundary: tokens that a load was to make usable, before the prompt was looked up anew; None
    where none failed. Whatever the tree says of them now, they were lost by that."""
    if boundary is None:
        return hit
    left = max(0, min(boundary, hit.prompt_tokens) - hit.usable_tokens)
    causes = dict(hit.causes)
    failed = 0
    # The tree lays its causes over a prompt in this order, from the last usable token on.
    for cause in CAUSES_IN_ORDER:
        taken = min(left, causes.get(cause, 0))
        if taken:
            causes[cause] -= taken
            left -= taken
            failed += taken
    in_pages = None if hit.in_pages is None else with_failed(hit.in_pages, boundary)
    if failed:
        causes[LOAD_FAILED] = failed
    return replace(hit, causes=causes, in_pages=in_pages)

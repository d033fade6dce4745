"""The cause of each eviction: the tree's log of evictions, and the engine's attribution of them to
requests."""

from pathlib import Path

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.accounting import TransferNames
from tasuki.engine.messages import EvictedCheckpoint, Eviction
from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache
from tests.harness import trees
from tests.harness.engines import Lone, engine_config, tiny_parts
from tests.harness.trees import Tokens, keep, text

END = 8 * 64


def tree(policy: str, slabs: int = 8) -> PrefixCache:
    return trees.tree_of(slabs, blocks_per_slab=4, pages_per_slab=4, policy=policy)


def prompt(seed: int) -> Tokens:
    """Return eight pages and a token."""
    return text(END + 1, seed)


def serve(cache: PrefixCache, seed: int) -> int:
    """Run a request that leaves its state at its last page; return its allocation's id."""
    return keep(cache, prompt(seed), END, kind=CheckpointKind.PROMPT_END).id


def test_an_eviction_names_its_lease_and_what_a_prompt_lost_to_it() -> None:
    cache = tree("lru")
    first = prompt(1)
    serve(cache, 1)
    assert cache.match(first).lost is None and cache.drain_evictions() == []
    takers = {serve(cache, seed) for seed in range(2, 6)}
    evictions = cache.drain_evictions()
    assert [eviction.sequence for eviction in evictions] == list(range(1, len(evictions) + 1))
    assert {eviction.allocation for eviction in evictions} <= takers
    states = [eviction for eviction in evictions if eviction.kind == "checkpoint"]
    assert states[0].boundary == END
    assert states[0].checkpoint_kind is CheckpointKind.PROMPT_END
    assert states[0].pages == 4 and states[0].score is None
    lost = cache.match(first).lost
    assert lost is not None and lost.boundary == END
    (taken,) = [eviction for eviction in evictions if eviction.sequence == lost.eviction]
    later = [eviction.pages for eviction in evictions if eviction.sequence >= taken.sequence]
    assert lost.pages_since == sum(later)
    assert sum(eviction.pages for eviction in evictions if eviction.kind == "pages") == (
        cache.stats().evicted_pages
    )


def test_a_state_that_came_back_is_not_lost() -> None:
    cache = tree("lru")
    first = prompt(1)
    for seed in range(1, 6):
        serve(cache, seed)
    assert cache.match(first).lost is not None
    serve(cache, 1)
    assert cache.match(first).lost is None and cache.match(first).usable_tokens == END


def test_a_policy_that_weighs_tells_its_scores() -> None:
    cache = tree("value")
    for seed in range(1, 9):
        serve(cache, seed)
    scores = [e.score for e in cache.drain_evictions() if e.kind == "checkpoint"]
    assert scores and all(score is not None and score >= 0 for score in scores)


def test_a_flush_takes_for_nobody() -> None:
    cache = tree("lru")
    serve(cache, 1)
    cache.flush()
    evictions = cache.drain_evictions()
    assert evictions and all(eviction.allocation is None for eviction in evictions)


def test_auto_tells_what_its_shadows_would_have_saved() -> None:
    cache = tree("auto", slabs=64)
    for _ in range(3):
        serve(cache, 1)
    saved = cache.stats().policies
    assert set(saved) == {"lru", "value"} and all(tokens > 0 for tokens in saved.values())
    assert tree("lru").stats().policies == {}


def test_a_turn_is_told_which_request_took_its_state() -> None:
    lone = Lone(engine_config(Path("tiny"), cache_policy="lru"), parts=tiny_parts(arena_mib=0.6))
    prompts = {f"r{seed}": np.arange(200, dtype=np.int32) % 97 + seed for seed in range(12)}
    for name, tokens in prompts.items():
        lone.ask(name, tokens.tolist(), 2)
    told = [eviction for item in lone.all_said(m.Evicted) for eviction in item.evictions]
    assert told and [eviction.sequence for eviction in told] == list(range(1, len(told) + 1))
    assert {eviction.taken_by for eviction in told} <= set(prompts)
    lone.ask("again", prompts["r0"].tolist(), 2)
    hit = lone.hit("again")
    assert hit.lost is not None and hit.lost.eviction in told
    assert hit.lost.tokens > hit.usable_tokens and hit.lost.slabs_since > 0
    assert lone.phases("again") == ["Prefilling", "Decoding", "Finished"]
    steps = lone.stats().steps
    assert steps is not None and sum(steps.steps.counts) > 12 and sum(steps.idle.counts) > 0


def test_a_room_is_told_by_its_request() -> None:
    names = TransferNames()
    names.note(m.TransferId(7), m.RequestId("mine"))

    def told(taken_by: str | None) -> str | None:
        lost = EvictedCheckpoint(64, 1.0, Eviction(1, "checkpoint", None, 64, 1.0, None, taken_by))
        hit = names.told_here(m.HitBreakdown(100, 0, 0, {"new": 100}, None, lost))
        assert hit.lost is not None and hit.lost.eviction is not None
        return hit.lost.eviction.taken_by

    assert [told(name) for name in ("room-7", "room-8", None)] == ["mine", "room-8", None]
    bare = m.HitBreakdown(100, 0, 0, {"new": 100}, None)
    assert names.told_here(bare) is bare

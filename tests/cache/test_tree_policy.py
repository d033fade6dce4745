"""One byte budget under every policy: nothing starves, moved KV follows, decisions repeat."""

import numpy as np
import pytest
import torch

from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.pycache._cpp_cache import (
    PAGE_TOKENS,
    Allocation,
    CheckpointKind,
    InvalidArgument,
    PrefixCache,
    TreeConfig,
)
from tasuki.pycache.arena import Arena, run_copies
from tests.harness import trees
from tests.harness.engines import PoisonedCache
from tests.harness.loopback_pair import FULL, GDN, small_layout
from tests.harness.trees import END, keep, take, take_from, text

POLICIES = ("lru", "value", "auto")


def tree_of(policy: str, slabs: int = 12, **config: object) -> PrefixCache:
    return trees.tree_of(slabs, policy=policy, **({"attention_cost": 1e-3} | config))


def prompt(*pages: int, partial: int = 1) -> np.ndarray:
    return np.repeat(
        np.array([*pages, 999], dtype=np.int32), [PAGE_TOKENS] * len(pages) + [partial]
    )


def serve(tree: PrefixCache, tokens: np.ndarray, end: int) -> int:
    """Run a request and return its usable tokens."""
    return keep(tree, tokens, end).match.usable_tokens


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_full_of_states_yields_pages_and_one_full_of_pages_yields_states(
    policy: str,
) -> None:
    tree = tree_of(policy)
    for first in range(40):
        serve(tree, prompt(first), PAGE_TOKENS)
    assert tree.stats().slabs_of_slots > tree.stats().slabs_total / 2
    long = prompt(*range(100, 130))
    assert serve(tree, long, 30 * PAGE_TOKENS) == 0
    assert tree.stats().slabs_of_pages >= 10
    for first in range(40, 80):
        serve(tree, prompt(first), PAGE_TOKENS)
    assert tree.stats().slabs_of_slots > 3
    tree.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_near_the_pool_size_progress_over_a_full_cache(policy: str) -> None:
    tree = tree_of(policy)
    for seed in range(12):
        keep(tree, text(150, seed))
    most = tree.capacity_tokens(1) // PAGE_TOKENS
    for round_ in range(20):
        tokens = prompt(*range(round_ * 100, round_ * 100 + most - 1))
        serve(tree, tokens, (most - 1) * PAGE_TOKENS)
    tree.check_integrity()


def test_recency_takes_a_state_on_probation_before_an_older_one_until_it_is_used() -> None:
    """A slab holds one slot: three states fill the arena with the page of each in the fourth."""

    def leave(tree: PrefixCache, page: int, kind: CheckpointKind) -> None:
        keep(tree, prompt(page, page), 2 * PAGE_TOKENS, kind=kind)

    def known(tree: PrefixCache, page: int) -> int:
        return tree.match(prompt(page, page)).usable_tokens

    for used in (False, True):
        tree = tree_of("lru", slabs=6)
        leave(tree, 1, CheckpointKind.TURN_END)
        leave(tree, 2, CheckpointKind.INTERIOR)
        if used:
            resumed = take(tree, prompt(2, 2), slots=0)
            assert resumed.cow_source_slot is not None
            tree.release(resumed)
        page = 10
        while min(known(tree, 1), known(tree, 2)):
            leave(tree, page, CheckpointKind.TURN_END)
            page += 1
        evicted, kept = (1, 2) if used else (2, 1)
        assert (known(tree, evicted), known(tree, kept)) == (0, 2 * PAGE_TOKENS), used
        tree.check_integrity()


def test_value_keeps_what_is_used_often_where_recency_loses_it_and_auto_follows() -> None:
    """A prefix comes back every eighth request; the prompts between never return."""
    saved, followed = dict.fromkeys(POLICIES, 0), {}
    for policy in POLICIES:
        tree = tree_of(policy, slabs=8)
        for step in range(600):
            tree.advance_to(step * 1000)
            if step % 8 == 0:
                saved[policy] += serve(tree, prompt(1, 2, 3), 3 * PAGE_TOKENS)
            else:
                serve(tree, prompt(1000 + step, 5000 + step), 2 * PAGE_TOKENS)
        followed[policy] = tree.policy
    assert saved["lru"] == 0
    assert saved["value"] > 45 * 3 * PAGE_TOKENS
    assert followed["auto"] == "value"


def one_size_returns(
    tree: PrefixCache, back: int, pages: int, steps: int = 2000, *, clocked: bool = True
) -> int:
    """Play short prompts twice, `back` requests apart, and return the saved tokens. Every fifth
    prompt is a long one that never returns. It is in the same class but worth more per page until
    more is known."""
    saved = 0
    for step in range(steps):
        if clocked:
            tree.advance_to(step * 1000)
        if step % 5 == 0:
            names = range(5_000_000 + step * 100, 5_000_000 + step * 100 + pages)
        else:
            name = (step // (2 * back) * back + step % back + 1) * 100
            names = range(name, name + 2)
        saved += serve(tree, prompt(*names), len(names) * PAGE_TOKENS)
    return saved


@pytest.mark.parametrize(
    ("slabs", "back"), [(64, 16), (512, 128)], ids=["all-tried", "an-eighth-tried"]
)
def test_auto_follows_recency_where_that_saves_more(slabs: int, back: int) -> None:
    saved, followed = {}, {}
    for policy in POLICIES:
        tree = tree_of(policy, slabs, max_ghost_nodes=8 * slabs, attention_cost=0.1)
        saved[policy] = one_size_returns(tree, back, pages=24)
        followed[policy] = tree.policy
    assert saved["lru"] > 2 * saved["value"]
    assert followed["auto"] == "lru"
    assert saved["auto"] > 0.8 * saved["lru"]


def test_without_a_clock_each_request_takes_a_second() -> None:
    saved = [
        one_size_returns(tree_of("value", 32), 4, pages=24, steps=600, clocked=clocked)
        for clocked in (True, False)
    ]
    # Without time, reuse cannot be measured: 256 tokens.
    assert saved[0] == saved[1] > 10_000


def ask_document(tree: PrefixCache, name: int, question: int) -> Allocation:
    """Run a prompt with twelve pages of a document and two of a question. Leave every state advised
    by the tree."""
    tokens = prompt(*range(name, name + 12), question, question + 1)
    allocation = take(tree, tokens)
    planned = plan_checkpoints(len(tokens), allocation.cached_tokens, allocation.match, ())
    for each in planned:
        slot = tree.take_checkpoint_slot(allocation)
        if slot is not None:
            tree.insert(allocation, each.position, slot, each.kind)
    tree.release(allocation)
    return allocation


@pytest.mark.parametrize("policy", POLICIES)
def test_a_document_is_kept_inside_once_it_is_known_where_documents_are_left(policy: str) -> None:
    hits = []
    for _ in range(2):
        tree = tree_of(policy, slabs=400)
        found = []
        for document in range(10):
            first = ask_document(tree, 1000 * (document + 1), 50_000 + 2 * document)
            second = ask_document(tree, 1000 * (document + 1), 60_000 + 2 * document)
            assert len(first.match.interior_tokens) <= 3
            assert all(place % PAGE_TOKENS == 0 for place in first.match.interior_tokens)
            found.append(second.match.usable_tokens)
        tree.check_integrity()
        hits.append(found)
    assert hits[0] == hits[1]
    assert hits[0][0] == 0
    assert min(hits[0][2:]) >= 10 * PAGE_TOKENS


def test_no_interior_state_is_proposed_where_none_would_have_been_used() -> None:
    tree = tree_of("value", slabs=60)
    for document in range(60):
        allocation = ask_document(tree, 1000 * (document + 1), 90_000)
        assert allocation.match.interior_tokens == []


def test_an_unknown_policy_and_an_unknown_hint_are_named() -> None:
    with pytest.raises(InvalidArgument, match=r"policy must be .* not fifo"):
        TreeConfig(slabs=4, blocks_per_slab=5, pages_per_slab=3, policy="fifo")
    tree = tree_of("value")
    allocation = take(tree, prompt(1))
    with pytest.raises(InvalidArgument, match=r"hint must be .* not soon"):
        tree.insert(allocation, 64, allocation.working_slots[0], END, "soon")
    tree.release(allocation)


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_the_kv_of_a_moved_page_moves_with_it(checkpoints: int) -> None:
    """For a slot to work in, or to keep a state in."""
    layout = small_layout((GDN, FULL), channels=4, head_dim=4, key_dim=32)
    assert layout.pages_per_slab == 3
    arena = Arena(layout, 9)
    cache = PoisonedCache(arena)

    def allocate(tokens: np.ndarray, slots: int) -> Allocation:
        taken = take_from(cache, tokens, slots)
        run_copies(arena, cache.take_copies())
        return taken

    # Each has its own slab with one page free again at release: four gaps, one slab free.
    homes = {}
    for first in (1, 2, 3, 4):
        held = allocate(prompt(first, first + 10), 1)
        homes[first] = held.pages.tolist()[:2]
        for place, page in enumerate(homes[first]):
            arena.views("kv")[0][page].fill_(10 * first + place)
        cache.insert(held, 128, held.working_slots[0], END)
        cache.release(held)
    held = allocate(prompt(7, partial=0), 2 - checkpoints)
    for _ in range(checkpoints):
        assert cache.take_checkpoint_slot(held) is not None
        run_copies(arena, cache.take_copies())
    cache.release(held)
    assert cache.stats().evicted_pages == 0
    found = {}
    for first in (1, 2, 3, 4):
        held = allocate(prompt(first, first + 10), 1)
        found[first] = held.pages.tolist()[: held.shared_pages]
        for place, page in enumerate(found[first]):
            assert torch.all(arena.views("kv")[0][page] == 10 * first + place)
        cache.release(held)
    assert sum(found[first] != homes[first] for first in homes) == 1

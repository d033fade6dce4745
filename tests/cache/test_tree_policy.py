"""One byte budget under every policy: nothing starves, moved KV follows, decisions repeat."""

import numpy as np
import pytest
import torch
from tasuki.engine.scheduling.checkpoint_planner import plan_checkpoints
from tasuki.pycache._cpp_cache import (
    PAGE_TOKENS,
    Allocation,
    CheckpointKind,
    InvalidArgument,
    PrefixCache,
    TreeConfig,
)
from tasuki.pycache.arena import Arena
from tasuki.pycache.copies import run_copies
from tasuki.pycache.layout import CacheLayout, LayerKind

from tests.harness.engines import PoisonedCache

POLICIES = ("lru", "value", "auto")


def tree_of(policy: str, slabs: int = 12) -> PrefixCache:
    return PrefixCache(
        TreeConfig(
            slabs=slabs, blocks_per_slab=5, pages_per_slab=3, policy=policy, attention_cost=1e-3
        )
    )


def prompt(*pages: int, partial: int = 1) -> np.ndarray:
    return np.repeat(
        np.array([*pages, 999], dtype=np.int32), [PAGE_TOKENS] * len(pages) + [partial]
    )


def serve(tree: PrefixCache, tokens: np.ndarray, boundary: int) -> int:
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
    assert allocation is not None, "a request that fits an empty arena was refused with none held"
    tree.insert(allocation, boundary, allocation.working_slots[0], CheckpointKind.TURN_END)
    tree.release(allocation)
    return allocation.match.usable_tokens


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
def test_requests_near_the_pool_size_still_progress(policy: str) -> None:
    tree = tree_of(policy)
    most = tree.capacity_tokens(1) // PAGE_TOKENS
    for round_ in range(20):
        tokens = prompt(*range(round_ * 100, round_ * 100 + most - 1))
        serve(tree, tokens, (most - 1) * PAGE_TOKENS)
    tree.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_stream_gets_the_same_decisions(policy: str) -> None:
    outcomes = []
    for _ in range(2):
        tree = tree_of(policy)
        random = np.random.default_rng(3)
        hits = []
        for step in range(400):
            tree.advance_to(step * 900)
            pages = random.integers(0, 6, size=random.integers(1, 4)).tolist()
            hits.append(serve(tree, prompt(*pages), len(pages) * PAGE_TOKENS + step % 2))
        outcomes.append((hits, tree.stats().evicted_pages, tree.stats().evicted_checkpoints))
    assert outcomes[0] == outcomes[1]
    assert sum(outcomes[0][0]) > 0


def test_recency_takes_a_state_on_probation_before_an_older_one_until_it_is_used() -> None:
    """A slab holds one slot: three states fill the arena with the page of each in the fourth."""

    def leave(tree: PrefixCache, page: int, kind: CheckpointKind) -> None:
        tokens = prompt(page, page)
        allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
        assert allocation is not None
        tree.insert(allocation, 2 * PAGE_TOKENS, allocation.working_slots[0], kind)
        tree.release(allocation)

    def known(tree: PrefixCache, page: int) -> int:
        return tree.match(prompt(page, page)).usable_tokens

    for used in (False, True):
        tree = tree_of("lru", slabs=6)
        leave(tree, 1, CheckpointKind.TURN_END)
        leave(tree, 2, CheckpointKind.INTERIOR)
        if used:
            tokens = prompt(2, 2)
            resumed = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=0)
            assert resumed is not None and resumed.cow_source_slot is not None
            tree.release(resumed)
        page = 10
        while min(known(tree, 1), known(tree, 2)):
            leave(tree, page, CheckpointKind.TURN_END)
            page += 1
        evicted, kept = (1, 2) if used else (2, 1)
        assert (known(tree, evicted), known(tree, kept)) == (0, 2 * PAGE_TOKENS), used
        tree.check_integrity()


def test_value_keeps_what_is_used_often_where_recency_loses_it() -> None:
    """A prefix comes back every fourth request; between, strangers pass that never return."""
    saved = {}
    for policy in ("lru", "value"):
        tree = tree_of(policy, slabs=8)
        total = 0
        for step in range(400):
            tree.advance_to(step * 1000)
            if step % 8 == 0:
                total += serve(tree, prompt(1, 2, 3), 3 * PAGE_TOKENS)
            else:
                serve(tree, prompt(1000 + step, 5000 + step), 2 * PAGE_TOKENS)
        saved[policy] = total
    assert saved["lru"] == 0
    assert saved["value"] > 30 * 3 * PAGE_TOKENS


def one_size_returns(tree: PrefixCache, back: int, pages: int) -> int:
    """Short prompts come twice, `back` requests apart; every fifth is a long one that never
    returns, of the same class but worth more a page as long as nothing else is known."""
    saved = 0
    for step in range(2000):
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
        tree = PrefixCache(
            TreeConfig(
                slabs=slabs,
                blocks_per_slab=5,
                pages_per_slab=3,
                max_ghost_nodes=8 * slabs,
                policy=policy,
                attention_cost=0.1,
            )
        )
        saved[policy] = one_size_returns(tree, back, pages=24)
        followed[policy] = tree.policy
    assert saved["lru"] > 2 * saved["value"]
    assert followed["auto"] == "lru"
    assert saved["auto"] > 0.8 * saved["lru"]


def test_auto_stays_with_value_where_that_saves_more() -> None:
    tree = tree_of("auto", slabs=8)
    for step in range(600):
        tree.advance_to(step * 1000)
        again = step % 8 == 0
        serve(tree, prompt(*([1, 2, 3] if again else [1000 + step, 5000 + step])), 2 * PAGE_TOKENS)
    assert tree.policy == "value"


def ask_document(tree: PrefixCache, name: int, question: int) -> Allocation:
    """Twelve pages of a document, two of a question; leaves every state that the tree advises."""
    tokens = prompt(*range(name, name + 12), question, question + 1)
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
    assert allocation is not None
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
    allocation = tree.allocate(prompt(1), capacity_tokens=65, working_slots=1)
    assert allocation is not None
    with pytest.raises(InvalidArgument, match=r"hint must be .* not soon"):
        tree.insert(allocation, 64, allocation.working_slots[0], CheckpointKind.TURN_END, "soon")
    tree.release(allocation)


def test_the_kv_of_a_moved_page_moves_with_it() -> None:
    layout = CacheLayout(
        layer_kinds=(LayerKind.GDN, LayerKind.FULL),
        kv_heads=1,
        head_dim=4,
        kv_dtype="float32",
        conv_channels=4,
        conv_columns=3,
        conv_dtype="float32",
        value_heads=2,
        value_dim=16,
        key_dim=32,
        ssm_dtype="float32",
    )
    assert layout.pages_per_slab == 3
    arena = Arena(layout, 9)
    cache = PoisonedCache(arena)

    def allocated(tokens: np.ndarray, slots: int) -> Allocation:
        taken = cache.allocate(
            tokens,
            salt=b"",
            capacity_tokens=len(tokens),
            working_slots=slots,
            cursor=None,
        )
        assert taken is not None
        run_copies(arena, cache.take_copies())
        return taken

    # A slab of its own each, one page of which is free again at release: four gaps, one slab free.
    homes = {}
    for first in (1, 2, 3, 4):
        held = allocated(prompt(first, first + 10), 1)
        homes[first] = held.pages.tolist()[:2]
        for place, page in enumerate(homes[first]):
            arena.kv[0][page].fill_(10 * first + place)
        cache.insert(held, 128, held.working_slots[0], CheckpointKind.TURN_END)
        cache.release(held)
    cache.release(allocated(prompt(7, partial=0), 2))
    assert cache.stats().evicted_pages == 0
    found = {}
    for first in (1, 2, 3, 4):
        held = allocated(prompt(first, first + 10), 1)
        found[first] = held.pages.tolist()[: held.shared_pages]
        for place, page in enumerate(found[first]):
            assert torch.all(arena.kv[0][page] == 10 * first + place)
        cache.release(held)
    assert sum(found[first] != homes[first] for first in homes) == 1

"""Named lives of the tree: what it promises, one case each."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from tasuki.pycache._cpp_cache import (
    CheckpointKind,
    HybridTree,
    ImpossibleRequest,
    InvalidArgument,
    Lease,
    TreeConfig,
)

Tokens = NDArray[np.int32]


def make_tree(slabs: int = 16, ghosts: int = 4096) -> HybridTree:
    return HybridTree(
        TreeConfig(slabs=slabs, blocks_per_slab=8, pages_per_slab=3, max_ghost_nodes=ghosts)
    )


def text(length: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, length, dtype=np.int32)


def take(tree: HybridTree, tokens: Tokens, capacity: int | None = None, slots: int = 1) -> Lease:
    lease = tree.lease(tokens, capacity_tokens=capacity or len(tokens), working_slots=slots)
    assert lease is not None
    return lease


def serve(tree: HybridTree, tokens: Tokens, *boundaries: int) -> None:
    """A whole request that leaves a state at each boundary, or only KV where there is none."""
    lease = take(tree, tokens)
    if not boundaries:
        tree.publish(lease, len(tokens) // 64 * 64, None, CheckpointKind.TURN_END)
    for boundary in boundaries:
        slot = tree.take_checkpoint_slot(lease)
        assert slot is not None
        tree.publish(lease, boundary, slot, CheckpointKind.TURN_END)
    tree.release(lease)
    tree.check_integrity()


def test_match_stops_one_token_before_the_end() -> None:
    tree, prompt = make_tree(), text(128)
    serve(tree, prompt, 64, 128)
    answer = tree.match(prompt)
    assert (answer.kv_tokens, answer.usable_tokens) == (128, 64)
    assert answer.causes.as_dict() | {"alignment": 0} == dict.fromkeys(answer.causes.as_dict(), 0)
    assert answer.causes.alignment == 64
    assert tree.match(text(129)).usable_tokens == 128


def test_split_leaves_the_checkpoint_on_the_deeper_end() -> None:
    tree, first = make_tree(), text(256)
    serve(tree, first, 256)
    second = np.concatenate([first[:128], text(128, seed=1)])
    serve(tree, second, 256)
    assert tree.match(np.append(first, first[:1])).usable_tokens == 256
    assert tree.match(np.append(second, first[:1])).usable_tokens == 256
    assert tree.stats().nodes == 3
    answer = tree.match(np.concatenate([first[:128], text(128, seed=2)]))
    assert (answer.usable_tokens, answer.branch_tokens) == (0, 128)
    assert answer.causes.never_checkpointed == 128


def test_tail_resumes_at_its_exact_token() -> None:
    tree, first = make_tree(), text(1001)
    serve(tree, first, 960, 1001)
    follow = np.concatenate([first, text(99, seed=1)])
    lease = take(tree, follow)
    assert (lease.cached_tokens, lease.shared_pages) == (1001, 15)
    assert lease.cow_source_slot is not None and lease.tail_copy is not None
    tree_page, own_page = lease.tail_copy
    assert own_page == lease.pages[15] and tree_page not in lease.pages.tolist()
    tree.publish(lease, 1100, lease.working_slots[0], CheckpointKind.TURN_END)
    with pytest.raises(InvalidArgument, match="tail"):
        tree.extend(lease, 2000)
    tree.release(lease)
    tree.check_integrity()
    assert tree.match(np.append(first, first[:1])).usable_tokens == 1001
    assert tree.match(np.append(follow, first[:1])).usable_tokens == 1100


def test_salts_never_share() -> None:
    tree, prompt = make_tree(), text(200)
    serve(tree, prompt, 192)
    answer = tree.match(prompt, b"other")
    assert (answer.kv_tokens, answer.usable_tokens, answer.causes.new) == (0, 0, 200)


def test_duplicate_publish_keeps_the_lease_pages_and_frees_the_slot() -> None:
    tree, prompt = make_tree(), text(192)
    leases = [take(tree, prompt), take(tree, prompt)]
    pages = [lease.pages.tolist() for lease in leases]
    for lease in leases:
        tree.publish(lease, 192, lease.working_slots[0], CheckpointKind.PROMPT_END)
    assert [lease.pages.tolist() for lease in leases] == pages
    assert [lease.shared_pages for lease in leases] == [3, 0]
    stats = tree.stats()
    assert (stats.pages.tree, stats.pages.working) == (3, 3)
    assert (stats.slots.tree, stats.slots.working) == (1, 0)
    for lease in leases:
        tree.release(lease)
    assert tree.stats().pages.working == 0


def test_chunk_after_chunk_grows_one_node() -> None:
    tree, prompt = make_tree(), text(640)
    lease = take(tree, prompt)
    for boundary in range(64, 641, 64):
        tree.publish(lease, boundary, None, CheckpointKind.MARK)
    assert tree.stats().nodes == 1
    assert lease.shared_pages == 10
    tree.release(lease)


def test_lease_receive_holds_kv_without_state() -> None:
    tree, prompt = make_tree(), text(256)
    serve(tree, prompt)
    lease = tree.lease_receive(prompt, capacity_tokens=320, working_slots=2)
    assert lease is not None
    assert (lease.cached_tokens, lease.shared_pages, lease.cow_source_slot) == (192, 3, None)
    assert len(lease.pages) == 5 and len(lease.working_slots) == 2
    assert tree.stats().leased_requests == 1
    tree.release(lease)


@pytest.mark.parametrize(("end", "pages"), [(192, 3), (150, 2)])
def test_lease_to_send_pins_what_is_usable_and_takes_nothing(end: int, pages: int) -> None:
    tree, prompt = make_tree(), text(256)
    serve(tree, prompt[:end], end)
    before = tree.stats()
    lease = tree.lease_to_send(prompt[: end + 1])
    assert lease is not None
    assert (lease.cached_tokens, len(lease.pages), lease.shared_pages) == (end, pages, pages)
    assert lease.working_slots == [] and lease.cow_source_slot is not None
    assert (lease.source_page is None) == (end % 64 == 0) and lease.tail_copy is None
    stats = tree.stats()
    assert stats.pages.free == before.pages.free and stats.slots.free == before.slots.free
    assert stats.leased_requests == 1 and stats.prompt_tokens == before.prompt_tokens
    tree.flush()
    tree.check_integrity()
    assert tree.match(prompt).usable_tokens == end, "pinned"
    tree.release(lease)
    tree.flush()
    tree.check_integrity()
    assert tree.match(prompt).usable_tokens == 0 and tree.stats().pages.tree == 0
    assert tree.lease_to_send(prompt) is None


def test_cursor_answers_as_a_full_match_and_survives_eviction() -> None:
    tree, turn = make_tree(), text(300)
    cursor = tree.open_cursor()
    lease = tree.lease(turn, capacity_tokens=300, working_slots=1, cursor=cursor)
    assert lease is not None
    tree.publish(lease, 256, lease.working_slots[0], CheckpointKind.TURN_END)
    tree.release(lease)
    fork = tree.fork_cursor(cursor)
    tree.close_cursor(cursor)
    longer = np.concatenate([turn, text(100, seed=1)])
    assert tree.match(longer, cursor=fork).usable_tokens == 256
    assert tree.match(text(400, seed=2), cursor=fork).kv_tokens == 0
    tree.flush()
    serve(tree, text(300, seed=3), 256)
    assert tree.match(longer, cursor=fork).causes.new == 400
    with pytest.raises(InvalidArgument, match="not open"):
        tree.match(longer, cursor=cursor)
    with pytest.raises(InvalidArgument, match="another salt"):
        tree.match(longer, b"other", fork)


def test_pages_and_slots_trade_one_budget() -> None:
    tree = make_tree(slabs=6)
    states = [take(tree, text(10, seed=seed), slots=2) for seed in range(2)]
    assert tree.lease(text(10), capacity_tokens=600, working_slots=1) is None
    for lease in states:
        tree.release(lease)
    pages = take(tree, text(10), capacity=960)
    assert tree.stats().slabs_of_pages == 5
    tree.release(pages)
    assert tree.stats().slabs_free == 6


def test_refusal_evicts_nothing() -> None:
    tree = make_tree(slabs=4)
    kept, prompt = text(64), text(192, seed=1)
    serve(tree, kept, 64)
    lease = take(tree, prompt)
    before = tree.stats().evicted_pages
    assert tree.lease(text(64, seed=2), capacity_tokens=384, working_slots=1) is None
    assert tree.stats().evicted_pages == before
    assert tree.match(np.append(kept, kept[:1])).kv_tokens == 64
    tree.release(lease)


def test_what_fits_an_empty_arena_is_admitted_once_alone() -> None:
    tree = make_tree(slabs=4)
    prompt = text(576)
    serve(tree, prompt[:130], 64, 128)
    lease = take(tree, prompt)
    assert lease.cached_tokens == 0
    assert lease.match.causes.checkpoint_evicted >= 128
    assert lease.match.usable_tokens + sum(lease.match.causes.as_dict().values()) == 576
    tree.release(lease)
    tree.check_integrity()


def test_impossible_request_names_what_would_fit() -> None:
    tree = make_tree(slabs=4)
    with pytest.raises(ImpossibleRequest, match="576 tokens"):
        tree.lease(text(10), capacity_tokens=577, working_slots=1)
    assert tree.capacity_tokens(1) == 576
    assert tree.stats().leases == 0


def test_checkpoint_goes_before_the_kv_above_it_and_worthless_kv_first() -> None:
    tree = make_tree(slabs=8)
    stateless, stateful = text(192, seed=1), text(192, seed=2)
    serve(tree, stateful, 192)
    serve(tree, stateless)
    lease = take(tree, text(64, seed=3), capacity=960)  # leaves room for all but the stateless KV
    assert tree.match(np.append(stateful, stateful[:1])).usable_tokens == 192
    assert tree.match(np.append(stateless, stateless[:1])).causes.kv_evicted == 192
    more = tree.take_checkpoint_slot(lease)
    assert more is not None
    answer = tree.match(np.append(stateful, stateful[:1]))
    assert (answer.usable_tokens, answer.kv_tokens) == (0, 192)
    assert (answer.causes.checkpoint_evicted, answer.causes.new) == (192, 1)
    tree.release(lease)


def test_forked_checkpoint_is_never_evicted() -> None:
    tree, prompt = make_tree(slabs=4), text(100)
    serve(tree, prompt, 64)
    lease = take(tree, prompt)
    assert lease.cow_source_slot is not None
    assert tree.take_checkpoint_slot(lease) is not None  # the last free slab
    assert tree.take_checkpoint_slot(lease) is None
    assert tree.flush() == 0
    assert tree.match(prompt).usable_tokens == 64
    tree.release(lease)


def test_in_flight_names_what_another_lease_computes() -> None:
    tree, prompt = make_tree(), text(200)
    lease = take(tree, prompt)
    other = np.concatenate([prompt[:150], text(50, seed=1)])
    assert tree.match(other).causes.as_dict() == {
        "new": 50,
        "never_checkpointed": 0,
        "checkpoint_evicted": 0,
        "kv_evicted": 0,
        "alignment": 0,
        "in_flight": 150,
    }
    tree.publish(lease, 192, None, CheckpointKind.MARK)
    causes = tree.match(other).causes
    assert (causes.never_checkpointed, causes.alignment, causes.new) == (128, 22, 50)
    tree.release(lease)


def test_granted_ids_live_until_settled_or_fenced() -> None:
    tree, prompt = make_tree(), text(192)
    lease = tree.lease_receive(prompt, capacity_tokens=192, working_slots=1)
    assert lease is not None
    tree.grant(lease)
    assert tree.stats().pages.granted == 3 and tree.stats().slots.granted == 1
    with pytest.raises(InvalidArgument, match="granted"):
        tree.publish(lease, 192, lease.working_slots[0], CheckpointKind.PROMPT_END)
    with pytest.raises(InvalidArgument, match="granted"):
        tree.release(lease)
    tree.settle(lease)
    tree.publish(lease, 192, lease.working_slots[0], CheckpointKind.PROMPT_END)
    tree.release(lease)

    lost = tree.lease_receive(text(192, seed=1), capacity_tokens=192, working_slots=1)
    assert lost is not None
    held = set(lost.pages.tolist())
    tree.grant(lost)
    quarantine = tree.quarantine(lost)
    assert tree.stats().pages.quarantined == 3 and tree.stats().leases == 0
    other = take(tree, text(192, seed=2))
    assert held.isdisjoint(other.pages.tolist())
    tree.free_quarantined(quarantine)
    with pytest.raises(InvalidArgument, match="quarantine"):
        tree.free_quarantined(quarantine)
    tree.release(other)
    tree.check_integrity()
    assert tree.stats().pages.quarantined == tree.stats().slots.quarantined == 0


def test_ghosts_are_bounded() -> None:
    tree = make_tree(slabs=4, ghosts=2)
    for seed in range(10):
        serve(tree, text(300, seed=seed), 256)
    assert 0 < tree.stats().ghost_nodes <= 2
    assert tree.match(text(300, seed=0)).causes.new == 300


def test_same_calls_give_the_same_ids() -> None:
    def life() -> list[list[int]]:
        tree = make_tree(slabs=6)
        seen = []
        for seed in [0, 1, 0, 2, 1, 3, 0]:
            lease = take(tree, text(300, seed=seed))
            seen.append([*lease.pages.tolist(), *lease.working_slots])
            tree.publish(lease, 256, lease.working_slots[0], CheckpointKind.TURN_END)
            tree.release(lease)
        return seen

    assert life() == life()


def test_a_lease_inside_a_run_is_still_met_after_a_split() -> None:
    tree, run = make_tree(), text(192)
    serve(tree, run)
    computing = np.concatenate([run[:128], text(100, seed=1)])
    lease = tree.lease_receive(computing, capacity_tokens=256, working_slots=1)
    assert lease is not None and lease.cached_tokens == 128
    serve(tree, np.concatenate([run[:128], text(64, seed=2)]))
    causes = tree.match(computing).causes
    assert (causes.never_checkpointed, causes.in_flight) == (128, 100)
    tree.release(lease)


@pytest.mark.parametrize("shared", [64, 65, 128])
def test_a_prompt_that_leaves_before_what_a_lease_remembers_meets_nothing_of_it(
    shared: int,
) -> None:
    """A lease knows by heart only the tokens behind the path that it stands on."""
    tree, run = make_tree(), text(192)
    serve(tree, run)
    standing = np.concatenate([run, text(100, seed=1)])
    lease = tree.lease_receive(standing, capacity_tokens=320, working_slots=1)
    assert lease is not None and lease.cached_tokens == 192
    # Where the lease's own first tokens would stand if they were taken for the path's.
    other = np.concatenate([run[:shared], standing[192 : 192 + 200 - shared]])
    causes = tree.match(other).causes
    assert (causes.in_flight, causes.never_checkpointed) == (0, shared // 64 * 64)
    tree.release(lease)
    tree.check_integrity()


def test_whatever_frees_room_counts_up_so_that_a_refusal_is_thought_over() -> None:
    tree, prompt = make_tree(), text(192)
    versions = [tree.room_version]
    lease = tree.lease_receive(prompt, capacity_tokens=192, working_slots=1)
    assert lease is not None
    tree.grant(lease)
    quarantine = tree.quarantine(lease)
    versions.append(tree.room_version)
    tree.free_quarantined(quarantine)
    versions.append(tree.room_version)
    serve(tree, prompt, 192)
    versions.append(tree.room_version)
    assert all(before < after for before, after in pairwise(versions)), versions

"""Promises of the tree, one named case each."""

from itertools import pairwise

import pytest

from tasuki.pycache._cpp_cache import CheckpointKind, ImpossibleRequest, InvalidArgument
from tests.harness.trees import (
    END,
    joined,
    keep,
    keep_kv,
    take,
    take_receive,
    text,
    tree_of,
    usable,
)


def test_match_stops_one_token_before_the_end() -> None:
    tree, prompt = tree_of(), text(128)
    keep(tree, prompt, 64, 128)
    answer = tree.match(prompt)
    assert (answer.kv_tokens, answer.usable_tokens) == (128, 64)
    assert {cause: lost for cause, lost in answer.miss_reasons.as_dict().items() if lost} == {
        "alignment": 64
    }
    assert usable(tree, prompt) == 128


def test_tail_resumes_at_its_exact_token() -> None:
    tree, first = tree_of(), text(1001)
    keep(tree, first, 960, 1001)
    follow = joined(first, text(99, seed=1))
    allocation = take(tree, follow)
    assert (allocation.cached_tokens, allocation.shared_pages) == (1001, 15)
    assert allocation.cow_source_slot is not None and allocation.tail_copy is not None
    tree_page, own_page = allocation.tail_copy
    assert own_page == allocation.pages[15] and tree_page not in allocation.pages.tolist()
    tree.insert(allocation, 1100, allocation.working_slots[0], END)
    with pytest.raises(InvalidArgument, match="tail"):
        tree.extend(allocation, 2000)
    tree.release(allocation)
    tree.check_integrity()
    assert (usable(tree, first), usable(tree, follow)) == (1001, 1100)


def test_chunk_after_chunk_grows_one_node() -> None:
    tree = tree_of()
    allocation = take(tree, text(640))
    for boundary in range(64, 641, 64):
        tree.insert(allocation, boundary, None, CheckpointKind.MARK)
    assert (tree.stats().nodes, allocation.shared_pages) == (1, 10)
    tree.release(allocation)


def test_lease_receive_holds_kv_without_state() -> None:
    tree, prompt = tree_of(), text(256)
    keep_kv(tree, prompt)
    allocation = take_receive(tree, prompt, capacity=320, slots=2)
    assert (allocation.cached_tokens, allocation.shared_pages, allocation.cow_source_slot) == (
        192,
        3,
        None,
    )
    assert len(allocation.pages) == 5 and len(allocation.working_slots) == 2
    assert tree.stats().allocated_requests == 1
    tree.release(allocation)


@pytest.mark.parametrize(("end", "pages"), [(192, 3), (150, 2)])
def test_lease_to_send_pins_what_is_usable_and_takes_nothing(end: int, pages: int) -> None:
    tree, prompt = tree_of(), text(256)
    keep(tree, prompt[:end])
    before = tree.stats()
    allocation = tree.allocate_to_send(prompt[: end + 1])
    assert allocation is not None
    assert (allocation.cached_tokens, len(allocation.pages), allocation.shared_pages) == (
        end,
        pages,
        pages,
    )
    assert allocation.working_slots == [] and allocation.cow_source_slot is not None
    assert (allocation.source_page is None) == (end % 64 == 0) and allocation.tail_copy is None
    stats = tree.stats()
    assert stats.pages.free == before.pages.free and stats.slots.free == before.slots.free
    assert stats.allocated_requests == 1 and stats.prompt_tokens == before.prompt_tokens
    tree.flush()
    tree.check_integrity()
    assert tree.match(prompt).usable_tokens == end, "pinned"
    tree.release(allocation)
    tree.flush()
    tree.check_integrity()
    assert tree.match(prompt).usable_tokens == 0 and tree.stats().pages.tree == 0
    assert tree.allocate_to_send(prompt) is None


def test_cursor_answers_as_a_full_match_and_survives_eviction() -> None:
    tree, turn = tree_of(), text(300)
    cursor = tree.open_cursor()
    allocation = tree.allocate(turn, capacity_tokens=300, working_slots=1, cursor=cursor)
    assert allocation is not None
    tree.insert(allocation, 256, allocation.working_slots[0], END)
    tree.release(allocation)
    fork = tree.fork_cursor(cursor)
    tree.close_cursor(cursor)
    longer = joined(turn, text(100, seed=1))
    assert tree.match(longer, cursor=fork).usable_tokens == 256
    assert tree.match(text(400, seed=2), cursor=fork).kv_tokens == 0
    tree.flush()
    keep(tree, text(300, seed=3), 256)
    assert tree.match(longer, cursor=fork).miss_reasons.new == 400
    with pytest.raises(InvalidArgument, match="not open"):
        tree.match(longer, cursor=cursor)
    with pytest.raises(InvalidArgument, match="another salt"):
        tree.match(longer, b"other", fork)


def test_pages_and_slots_trade_one_budget() -> None:
    tree = tree_of(slabs=6)
    states = [take(tree, text(10, seed=seed), slots=2) for seed in range(2)]
    assert tree.allocate(text(10), capacity_tokens=600, working_slots=1) is None
    for allocation in states:
        tree.release(allocation)
    pages = take(tree, text(10), capacity=960)
    assert tree.stats().slabs_of_pages == 5
    tree.release(pages)
    assert tree.stats().slabs_free == 6


def test_refusal_evicts_nothing() -> None:
    tree, kept = tree_of(slabs=4), text(64)
    keep(tree, kept)
    allocation = take(tree, text(192, seed=1))
    before = tree.stats().evicted_pages
    assert tree.allocate(text(64, seed=2), capacity_tokens=384, working_slots=1) is None
    assert tree.stats().evicted_pages == before
    assert tree.match(kept).kv_tokens == 64
    tree.release(allocation)


def test_what_fits_an_empty_arena_is_admitted_once_alone() -> None:
    tree, prompt = tree_of(slabs=4), text(576)
    keep(tree, prompt[:130], 64, 128)
    allocation = take(tree, prompt)
    assert allocation.cached_tokens == 0
    assert allocation.match.miss_reasons.checkpoint_evicted >= 128
    assert (
        allocation.match.usable_tokens + sum(allocation.match.miss_reasons.as_dict().values())
        == 576
    )
    tree.release(allocation)
    tree.check_integrity()


def test_impossible_request_names_what_would_fit() -> None:
    tree = tree_of(slabs=4)
    with pytest.raises(ImpossibleRequest, match="576 tokens"):
        tree.allocate(text(10), capacity_tokens=577, working_slots=1)
    assert tree.capacity_tokens(1) == 576
    assert tree.stats().allocations == 0


def test_checkpoint_goes_before_the_kv_above_it_and_worthless_kv_first() -> None:
    tree = tree_of(slabs=8)
    stateless, stateful = text(192, seed=1), text(192, seed=2)
    keep(tree, stateful)
    keep_kv(tree, stateless)
    allocation = take(
        tree, text(64, seed=3), capacity=960
    )  # leaves room for all but the stateless KV
    assert usable(tree, stateful) == 192
    assert tree.match(joined(stateless, 5)).miss_reasons.kv_evicted == 192
    assert tree.take_checkpoint_slot(allocation) is not None
    answer = tree.match(joined(stateful, 5))
    assert (answer.usable_tokens, answer.kv_tokens) == (0, 192)
    assert (answer.miss_reasons.checkpoint_evicted, answer.miss_reasons.new) == (192, 1)
    tree.release(allocation)


def test_forked_checkpoint_is_never_evicted() -> None:
    tree, prompt = tree_of(slabs=4), text(100)
    keep(tree, prompt, 64)
    allocation = take(tree, prompt)
    assert allocation.cow_source_slot is not None
    assert tree.take_checkpoint_slot(allocation) is not None  # the last free slab
    assert tree.take_checkpoint_slot(allocation) is None
    assert tree.flush() == 0
    assert tree.match(prompt).usable_tokens == 64
    tree.release(allocation)


def test_in_flight_names_what_another_lease_computes() -> None:
    tree, prompt = tree_of(), text(200)
    allocation = take(tree, prompt)
    other = joined(prompt[:150], text(50, seed=1))
    causes = tree.match(other).miss_reasons
    assert (causes.in_flight, causes.new, sum(causes.as_dict().values())) == (150, 50, 200)
    tree.insert(allocation, 192, None, CheckpointKind.MARK)
    causes = tree.match(other).miss_reasons
    assert (causes.never_checkpointed, causes.alignment, causes.new) == (128, 22, 50)
    tree.release(allocation)


def test_granted_ids_live_until_settled_or_fenced() -> None:
    tree = tree_of()
    allocation = take_receive(tree, text(192))
    tree.grant(allocation)
    assert tree.stats().pages.granted == 3 and tree.stats().slots.granted == 1
    with pytest.raises(InvalidArgument, match="granted"):
        tree.insert(allocation, 192, allocation.working_slots[0], CheckpointKind.PROMPT_END)
    with pytest.raises(InvalidArgument, match="granted"):
        tree.release(allocation)
    tree.accept_received(allocation)
    tree.insert(allocation, 192, allocation.working_slots[0], CheckpointKind.PROMPT_END)
    tree.release(allocation)

    lost = take_receive(tree, text(192, seed=1))
    held = set(lost.pages.tolist())
    tree.grant(lost)
    quarantine = tree.quarantine(lost)
    assert tree.stats().pages.quarantined == 3 and tree.stats().allocations == 0
    other = take(tree, text(192, seed=2))
    assert held.isdisjoint(other.pages.tolist())
    tree.free_quarantined(quarantine)
    with pytest.raises(InvalidArgument, match="quarantine"):
        tree.free_quarantined(quarantine)
    tree.release(other)
    tree.check_integrity()
    assert tree.stats().pages.quarantined == tree.stats().slots.quarantined == 0


def test_ghosts_are_bounded() -> None:
    tree = tree_of(slabs=4, max_ghost_nodes=2)
    for seed in range(10):
        keep(tree, text(300, seed=seed), 256)
    assert 0 < tree.stats().ghost_nodes <= 2
    assert tree.match(text(300, seed=0)).miss_reasons.new == 300


def test_a_lease_inside_a_run_is_still_met_after_a_split() -> None:
    tree, run = tree_of(), text(192)
    keep_kv(tree, run)
    computing = joined(run[:128], text(100, seed=1))
    allocation = take_receive(tree, computing, capacity=256)
    assert allocation.cached_tokens == 128
    keep_kv(tree, joined(run[:128], text(64, seed=2)))
    causes = tree.match(computing).miss_reasons
    assert (causes.never_checkpointed, causes.in_flight) == (128, 100)
    tree.release(allocation)


@pytest.mark.parametrize("shared", [64, 65, 128])
def test_a_prompt_that_leaves_before_what_a_lease_remembers_meets_nothing_of_it(
    shared: int,
) -> None:
    """An allocation itself keeps only the tokens after its path in the tree."""
    tree, run = tree_of(), text(192)
    keep_kv(tree, run)
    standing = joined(run, text(100, seed=1))
    allocation = take_receive(tree, standing, capacity=320)
    assert allocation.cached_tokens == 192
    # The allocation's own first tokens would be here if they were taken for the path's.
    other = joined(run[:shared], standing[192 : 192 + 200 - shared])
    causes = tree.match(other).miss_reasons
    assert (causes.in_flight, causes.never_checkpointed) == (0, shared // 64 * 64)
    tree.release(allocation)
    tree.check_integrity()


def test_whatever_frees_room_counts_up_so_that_a_refusal_is_thought_over() -> None:
    tree = tree_of()
    versions = [tree.room_version]
    allocation = take_receive(tree, text(192))
    tree.grant(allocation)
    quarantine = tree.quarantine(allocation)
    versions.append(tree.room_version)
    tree.free_quarantined(quarantine)
    versions.append(tree.room_version)
    keep(tree, text(192))
    versions.append(tree.room_version)
    assert all(before < after for before, after in pairwise(versions)), versions


@pytest.mark.parametrize(("pages", "waits"), [(9, True), (10, False)])
def test_what_fits_beside_its_source_to_the_last_page_waits_and_more_starts_from_nothing(
    pages: int, waits: bool
) -> None:
    """Four slabs of three pages: the source's page and its state's slab leave eight."""
    tree, prompt = tree_of(slabs=4), text(70)
    keep(tree, prompt, 64)
    busy = take(tree, text(10, seed=1), slots=0)
    allocation = tree.allocate(prompt, capacity_tokens=64 * pages, working_slots=0)
    if waits:
        assert allocation is None and tree.match(prompt).usable_tokens == 64
        tree.release(busy)
        allocation = take(tree, prompt, capacity=64 * pages, slots=0)
        assert allocation.cached_tokens == 64
        return
    assert allocation is not None and allocation.cached_tokens == 0
    match = allocation.match
    assert (match.usable_tokens, match.checkpoint_kind, match.branch_tokens) == (0, None, None)
    assert (match.in_pages.usable_tokens, match.in_pages.checkpoint_kind) == (0, None)
    assert match.miss_reasons.checkpoint_evicted == 64
    assert match.in_pages.miss_reasons.checkpoint_evicted == 64


def test_a_state_at_exactly_the_prompts_end_is_a_matter_of_alignment_by_pages_too() -> None:
    tree, prompt = tree_of(), text(128)
    keep(tree, prompt, 128)
    match = tree.match(prompt)
    for causes in (match.miss_reasons, match.in_pages.miss_reasons):
        assert (causes.alignment, causes.never_checkpointed) == (128, 0)


def test_an_evicted_state_inside_a_page_is_missed_by_prompts_that_go_on_only() -> None:
    tree, prompt = tree_of(slabs=4), text(100)
    keep(tree, prompt, 100)
    other = take(tree, text(10, seed=1), slots=2)
    assert tree.take_checkpoint_slot(other) is not None, "of the state at 100"
    causes = tree.match(joined(prompt, 5)).miss_reasons
    assert (causes.checkpoint_evicted, causes.never_checkpointed) == (64, 0)
    causes = tree.match(prompt).miss_reasons
    assert (causes.checkpoint_evicted, causes.never_checkpointed) == (0, 64)
    tree.release(other)


def test_a_flush_forgets_what_was_evicted_of_prefixes_that_stay() -> None:
    tree, prompt = tree_of(), text(129)
    keep(tree, prompt, 128)
    held = take_receive(tree, prompt)
    tree.flush()
    match = tree.match(prompt)
    assert (match.kv_tokens, match.usable_tokens) == (128, 0)
    causes = match.miss_reasons
    assert (causes.checkpoint_evicted, causes.never_checkpointed) == (0, 128)
    tree.release(held)


def test_lengths_of_every_call_are_checked_at_their_bounds() -> None:
    tree, prompt = tree_of(slabs=4), text(10)
    for allocate in (tree.allocate, tree.allocate_to_receive):
        with pytest.raises(ImpossibleRequest):
            allocate(prompt, capacity_tokens=2**48, working_slots=1)
        for capacity in (2**48 + 1, 9, -1):
            with pytest.raises(InvalidArgument, match="capacity_tokens must be at least 10"):
                allocate(prompt, capacity_tokens=capacity, working_slots=1)
    held = take(tree, prompt)
    with pytest.raises(ImpossibleRequest):
        tree.extend(held, 2**48)
    for capacity in (2**48 + 1, -1):
        with pytest.raises(InvalidArgument, match="capacity_tokens must be at least 0"):
            tree.extend(held, capacity)
    assert tree.extend(held, 0) and len(held.pages) == 1
    tree.release(held)
    tree.check_integrity()

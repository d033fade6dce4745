"""Named lives of the tree: what it promises, one case each."""

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
    assert {cause: lost for cause, lost in answer.causes.as_dict().items() if lost} == {
        "alignment": 64
    }
    assert usable(tree, prompt) == 128


def test_tail_resumes_at_its_exact_token() -> None:
    tree, first = tree_of(), text(1001)
    keep(tree, first, 960, 1001)
    follow = joined(first, text(99, seed=1))
    lease = take(tree, follow)
    assert (lease.cached_tokens, lease.shared_pages) == (1001, 15)
    assert lease.cow_source_slot is not None and lease.tail_copy is not None
    tree_page, own_page = lease.tail_copy
    assert own_page == lease.pages[15] and tree_page not in lease.pages.tolist()
    tree.publish(lease, 1100, lease.working_slots[0], END)
    with pytest.raises(InvalidArgument, match="tail"):
        tree.extend(lease, 2000)
    tree.release(lease)
    tree.check_integrity()
    assert (usable(tree, first), usable(tree, follow)) == (1001, 1100)


def test_chunk_after_chunk_grows_one_node() -> None:
    tree = tree_of()
    lease = take(tree, text(640))
    for boundary in range(64, 641, 64):
        tree.publish(lease, boundary, None, CheckpointKind.MARK)
    assert (tree.stats().nodes, lease.shared_pages) == (1, 10)
    tree.release(lease)


def test_lease_receive_holds_kv_without_state() -> None:
    tree, prompt = tree_of(), text(256)
    keep_kv(tree, prompt)
    lease = take_receive(tree, prompt, capacity=320, slots=2)
    assert (lease.cached_tokens, lease.shared_pages, lease.cow_source_slot) == (192, 3, None)
    assert len(lease.pages) == 5 and len(lease.working_slots) == 2
    assert tree.stats().leased_requests == 1
    tree.release(lease)


@pytest.mark.parametrize(("end", "pages"), [(192, 3), (150, 2)])
def test_lease_to_send_pins_what_is_usable_and_takes_nothing(end: int, pages: int) -> None:
    tree, prompt = tree_of(), text(256)
    keep(tree, prompt[:end])
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
    tree, turn = tree_of(), text(300)
    cursor = tree.open_cursor()
    lease = tree.lease(turn, capacity_tokens=300, working_slots=1, cursor=cursor)
    assert lease is not None
    tree.publish(lease, 256, lease.working_slots[0], END)
    tree.release(lease)
    fork = tree.fork_cursor(cursor)
    tree.close_cursor(cursor)
    longer = joined(turn, text(100, seed=1))
    assert tree.match(longer, cursor=fork).usable_tokens == 256
    assert tree.match(text(400, seed=2), cursor=fork).kv_tokens == 0
    tree.flush()
    keep(tree, text(300, seed=3), 256)
    assert tree.match(longer, cursor=fork).causes.new == 400
    with pytest.raises(InvalidArgument, match="not open"):
        tree.match(longer, cursor=cursor)
    with pytest.raises(InvalidArgument, match="another salt"):
        tree.match(longer, b"other", fork)


def test_pages_and_slots_trade_one_budget() -> None:
    tree = tree_of(slabs=6)
    states = [take(tree, text(10, seed=seed), slots=2) for seed in range(2)]
    assert tree.lease(text(10), capacity_tokens=600, working_slots=1) is None
    for lease in states:
        tree.release(lease)
    pages = take(tree, text(10), capacity=960)
    assert tree.stats().slabs_of_pages == 5
    tree.release(pages)
    assert tree.stats().slabs_free == 6


def test_refusal_evicts_nothing() -> None:
    tree, kept = tree_of(slabs=4), text(64)
    keep(tree, kept)
    lease = take(tree, text(192, seed=1))
    before = tree.stats().evicted_pages
    assert tree.lease(text(64, seed=2), capacity_tokens=384, working_slots=1) is None
    assert tree.stats().evicted_pages == before
    assert tree.match(kept).kv_tokens == 64
    tree.release(lease)


def test_what_fits_an_empty_arena_is_admitted_once_alone() -> None:
    tree, prompt = tree_of(slabs=4), text(576)
    keep(tree, prompt[:130], 64, 128)
    lease = take(tree, prompt)
    assert lease.cached_tokens == 0
    assert lease.match.causes.checkpoint_evicted >= 128
    assert lease.match.usable_tokens + sum(lease.match.causes.as_dict().values()) == 576
    tree.release(lease)
    tree.check_integrity()


def test_impossible_request_names_what_would_fit() -> None:
    tree = tree_of(slabs=4)
    with pytest.raises(ImpossibleRequest, match="576 tokens"):
        tree.lease(text(10), capacity_tokens=577, working_slots=1)
    assert tree.capacity_tokens(1) == 576
    assert tree.stats().leases == 0


def test_checkpoint_goes_before_the_kv_above_it_and_worthless_kv_first() -> None:
    tree = tree_of(slabs=8)
    stateless, stateful = text(192, seed=1), text(192, seed=2)
    keep(tree, stateful)
    keep_kv(tree, stateless)
    lease = take(tree, text(64, seed=3), capacity=960)  # leaves room for all but the stateless KV
    assert usable(tree, stateful) == 192
    assert tree.match(joined(stateless, 5)).causes.kv_evicted == 192
    assert tree.take_checkpoint_slot(lease) is not None
    answer = tree.match(joined(stateful, 5))
    assert (answer.usable_tokens, answer.kv_tokens) == (0, 192)
    assert (answer.causes.checkpoint_evicted, answer.causes.new) == (192, 1)
    tree.release(lease)


def test_forked_checkpoint_is_never_evicted() -> None:
    tree, prompt = tree_of(slabs=4), text(100)
    keep(tree, prompt, 64)
    lease = take(tree, prompt)
    assert lease.cow_source_slot is not None
    assert tree.take_checkpoint_slot(lease) is not None  # the last free slab
    assert tree.take_checkpoint_slot(lease) is None
    assert tree.flush() == 0
    assert tree.match(prompt).usable_tokens == 64
    tree.release(lease)


def test_in_flight_names_what_another_lease_computes() -> None:
    tree, prompt = tree_of(), text(200)
    lease = take(tree, prompt)
    other = joined(prompt[:150], text(50, seed=1))
    causes = tree.match(other).causes
    assert (causes.in_flight, causes.new, sum(causes.as_dict().values())) == (150, 50, 200)
    tree.publish(lease, 192, None, CheckpointKind.MARK)
    causes = tree.match(other).causes
    assert (causes.never_checkpointed, causes.alignment, causes.new) == (128, 22, 50)
    tree.release(lease)


def test_granted_ids_live_until_settled_or_fenced() -> None:
    tree = tree_of()
    lease = take_receive(tree, text(192))
    tree.grant(lease)
    assert tree.stats().pages.granted == 3 and tree.stats().slots.granted == 1
    with pytest.raises(InvalidArgument, match="granted"):
        tree.publish(lease, 192, lease.working_slots[0], CheckpointKind.PROMPT_END)
    with pytest.raises(InvalidArgument, match="granted"):
        tree.release(lease)
    tree.settle(lease)
    tree.publish(lease, 192, lease.working_slots[0], CheckpointKind.PROMPT_END)
    tree.release(lease)

    lost = take_receive(tree, text(192, seed=1))
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
    tree = tree_of(slabs=4, max_ghost_nodes=2)
    for seed in range(10):
        keep(tree, text(300, seed=seed), 256)
    assert 0 < tree.stats().ghost_nodes <= 2
    assert tree.match(text(300, seed=0)).causes.new == 300


def test_a_lease_inside_a_run_is_still_met_after_a_split() -> None:
    tree, run = tree_of(), text(192)
    keep_kv(tree, run)
    computing = joined(run[:128], text(100, seed=1))
    lease = take_receive(tree, computing, capacity=256)
    assert lease.cached_tokens == 128
    keep_kv(tree, joined(run[:128], text(64, seed=2)))
    causes = tree.match(computing).causes
    assert (causes.never_checkpointed, causes.in_flight) == (128, 100)
    tree.release(lease)


@pytest.mark.parametrize("shared", [64, 65, 128])
def test_a_prompt_that_leaves_before_what_a_lease_remembers_meets_nothing_of_it(
    shared: int,
) -> None:
    """A lease knows by heart only the tokens behind the path that it stands on."""
    tree, run = tree_of(), text(192)
    keep_kv(tree, run)
    standing = joined(run, text(100, seed=1))
    lease = take_receive(tree, standing, capacity=320)
    assert lease.cached_tokens == 192
    # Where the lease's own first tokens would stand if they were taken for the path's.
    other = joined(run[:shared], standing[192 : 192 + 200 - shared])
    causes = tree.match(other).causes
    assert (causes.in_flight, causes.never_checkpointed) == (0, shared // 64 * 64)
    tree.release(lease)
    tree.check_integrity()


def test_whatever_frees_room_counts_up_so_that_a_refusal_is_thought_over() -> None:
    tree = tree_of()
    versions = [tree.room_version]
    lease = take_receive(tree, text(192))
    tree.grant(lease)
    quarantine = tree.quarantine(lease)
    versions.append(tree.room_version)
    tree.free_quarantined(quarantine)
    versions.append(tree.room_version)
    keep(tree, text(192))
    versions.append(tree.room_version)
    assert all(before < after for before, after in pairwise(versions)), versions

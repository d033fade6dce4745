"""Events of the tree: a watcher's events equal the tree's content and contain no tokens."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from tasuki.client.cache_events import MissedEvents, PrefixIndex
from tasuki.pycache._cpp_cache import (
    PAGE_TOKENS,
    CacheEvent,
    InvalidArgument,
    PrefixCache,
    prefix_hashes,
)
from tests.cache.siphash import siphash_2_4_128
from tests.harness.trees import END, Tokens, joined, keep, keep_kv, take, text, tree_of


def watched(tree: PrefixCache, stream: str = "all") -> int:
    """Return a watch after its first snapshot."""
    watch = tree.watch(stream)
    assert tree.drain_events(watch).is_snapshot
    return watch


def told(tree: PrefixCache, watch: int) -> list[tuple[str, int]]:
    batch = tree.drain_events(watch)
    assert not batch.is_snapshot
    return [(event.kind, event.tokens) for event in batch]


def spoken(tokens: Tokens, salt: bytes) -> list[bytes]:
    """Return prefix_hashes() computed by the text of prefix_hash.h."""
    key = siphash_2_4_128(b"tasuki prefix v1", salt)
    hashes = [siphash_2_4_128(key, b"")]
    for start in range(0, len(tokens), PAGE_TOKENS):
        page = tokens[start : start + PAGE_TOKENS].astype("<i4").tobytes()
        hashes.append(siphash_2_4_128(key, hashes[-1] + page))
    return hashes


def test_the_reference_answers_as_the_paper_says() -> None:
    key = bytes(range(16))
    assert siphash_2_4_128(key, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash_2_4_128(key, b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("salt", [b"", b"tenant", b"\0\xff" * 9])
def test_a_prefix_is_named_as_the_header_says(length: int, salt: bytes) -> None:
    assert prefix_hashes(text(length), salt) == spoken(text(length), salt)


def test_names_are_the_same_in_every_process() -> None:
    program = (
        "import numpy as np; from tasuki.pycache._cpp_cache import prefix_hashes;"
        "print(prefix_hashes(np.arange(200, dtype=np.int32), b'tenant')[-1].hex())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    mine = prefix_hashes(np.arange(200, dtype=np.int32), b"tenant")[-1].hex()
    assert run.stdout.strip() == mine, run.stderr


def test_a_name_cannot_be_checked_against_a_guess_without_the_salt() -> None:
    mine, guessed = (prefix_hashes(text(200), salt) for salt in (b"secret", b""))
    assert not set(mine) & set(guessed)
    # The hash is not keyed by the name of the page before.
    page = text(200)[:PAGE_TOKENS].astype("<i4").tobytes()
    assert siphash_2_4_128(mine[0], page) != mine[1]


def test_a_turn_is_told_in_order_with_parents() -> None:
    tree = tree_of()
    watch = watched(tree)
    keep(tree, text(150), 64, 150)
    names = prefix_hashes(text(150))
    events = list(tree.drain_events(watch))
    assert [(e.sequence, e.kind, e.tokens, e.parent, e.prefix) for e in events] == [
        (1, "page_stored", 64, names[0], names[1]),
        (2, "checkpoint_stored", 64, names[0], names[1]),
        (3, "page_stored", 128, names[1], names[2]),
        (4, "checkpoint_stored", 150, names[2], names[3]),
    ]
    assert [e.checkpoint_kind for e in events] == [None, END, None, END]


def test_the_usable_stream_tells_only_prefixes_with_a_state() -> None:
    tree = tree_of()
    watch = watched(tree, "usable")
    allocation = take(tree, text(192))
    tree.insert(allocation, 128, None, END)
    assert told(tree, watch) == [], "KV without a state saves no prefill"
    tree.insert(allocation, 192, allocation.working_slots[0], END)
    tree.release(allocation)
    assert told(tree, watch) == [("checkpoint_stored", 192)]


def test_a_duplicate_a_hit_and_a_split_are_no_events() -> None:
    tree = tree_of()
    keep(tree, text(256))
    watch = watched(tree)
    keep(tree, text(256))
    tree.match(text(300))
    allocation = take(tree, text(300)[:260])
    assert allocation.cached_tokens == 256
    tree.release(allocation)
    assert told(tree, watch) == []
    keep(tree, joined(text(256)[:128], text(64, 1)))
    assert told(tree, watch) == [("page_stored", 192), ("checkpoint_stored", 192)]


@pytest.mark.parametrize("stream", ["all", "usable"])
def test_names_are_stable_across_splits(stream: str) -> None:
    tree = tree_of()
    watch = watched(tree, stream)
    keep(tree, text(256))
    keep(tree, joined(text(256)[:128], text(64, 1)))
    stored = {e.prefix for e in tree.drain_events(watch)}
    take(tree, text(1, 99), capacity=3 * 64, slots=tree.stats().slabs_total - 1)
    assert tree.stats().nodes == 0, "all else is gone"
    removed = [e.prefix for e in tree.drain_events(watch) if e.kind.endswith("_removed")]
    assert set(removed) == stored and removed.count(None) == 0


def test_children_are_removed_before_their_parents_and_each_once() -> None:
    tree = tree_of(slabs=6)
    watch = watched(tree)
    standing: dict[bytes, bytes] = {}
    root = prefix_hashes(text(0))[0]
    for seed in range(40):
        keep(tree, joined(text(128, seed % 3), text(70, seed)), 128, 198)
        for event in tree.drain_events(watch):
            assert event.prefix is not None and event.parent is not None
            if event.kind == "page_stored":
                assert event.prefix not in standing
                assert event.parent == root or event.parent in standing
                standing[event.prefix] = event.parent
            elif event.kind == "page_removed":
                assert event.prefix not in standing.values(), "a child outlived its parent"
                del standing[event.prefix]
    assert len(standing) <= tree.stats().pages.tree < 40, "nothing was ever removed"


def test_cleared_is_told_once_and_only_where_all_goes() -> None:
    tree = tree_of()
    watch = watched(tree)
    tree.flush()
    assert told(tree, watch) == [], "nothing stood"
    keep(tree, text(128))
    tree.drain_events(watch)
    tree.flush()
    assert told(tree, watch) == [("cleared", 0)]
    keep(tree, text(128))
    allocation = take(tree, text(130))
    keep(tree, text(64, 5))
    tree.drain_events(watch)
    tree.flush()
    assert told(tree, watch) == [("checkpoint_removed", 64), ("page_removed", 64)]
    tree.release(allocation)


def test_a_moved_page_keeps_its_name() -> None:
    tree = tree_of(slabs=4)
    for seed in range(2):  # one page left in each of two slabs
        allocation = take(tree, text(64, seed), capacity=3 * 64, slots=0)
        tree.insert(allocation, 64, None, END)
        tree.release(allocation)
    watch = watched(tree)
    take(tree, text(1, 8), slots=3)
    assert len(tree.drain_moves()) == 1
    assert told(tree, watch) == []


def test_a_slow_watcher_is_told_of_the_gap_and_given_a_snapshot() -> None:
    tree = tree_of()
    watch = tree.watch("all", capacity=3)
    index = PrefixIndex()
    index.apply(tree.drain_events(watch))
    keep(tree, text(64))
    assert told(tree, watch) == [("page_stored", 64), ("checkpoint_stored", 64)]
    keep(tree, text(192, 1))  # four events: one too many
    keep(tree, text(64, 2))
    batch = tree.drain_events(watch)
    assert batch.is_snapshot and batch.gap is not None
    assert (batch.gap.first_lost, batch.gap.resync_from) == (3, 8) == (3, batch.sequence)
    index.apply(batch)
    assert len(index.pages) == tree.stats().pages.tree == 5
    assert set(index.checkpoints.values()) == {64, 192}
    keep(tree, text(64, 3))
    after = tree.drain_events(watch)
    assert [event.sequence for event in after] == [9, 10] and after.gap is None
    index.apply(after)


def test_a_batch_lost_on_the_way_is_noticed() -> None:
    tree = tree_of()
    watch = tree.watch()
    index = PrefixIndex()
    index.apply(tree.drain_events(watch))
    keep(tree, text(64))
    tree.drain_events(watch)
    keep(tree, text(64, 1))
    with pytest.raises(MissedEvents, match="after event 0"):
        index.apply(tree.drain_events(watch))
    index.apply(tree.drain_events(tree.watch()))
    assert len(index.checkpoints) == 2


def test_a_watcher_that_leaves_costs_and_hears_nothing_more() -> None:
    tree = tree_of()
    watch, other = tree.watch(), tree.watch("all")
    tree.unwatch(watch)
    with pytest.raises(InvalidArgument, match="watch 1 is not open"):
        tree.drain_events(watch)
    tree.unwatch(other)
    keep(tree, text(64))
    late = tree.drain_events(tree.watch("all"))
    assert late.sequence == 0, "nothing is counted while nobody watches"
    assert [event.kind for event in late] == ["page_stored", "checkpoint_stored"]


@pytest.mark.parametrize(
    ("stream", "capacity", "fix"),
    [("pages", 10, "all, usable or spelled"), ("all", 0, "at least 1"), ("all", -1, "at least 1")],
)
def test_a_watch_that_cannot_be_is_refused(stream: str, capacity: int, fix: str) -> None:
    with pytest.raises(InvalidArgument, match=fix):
        tree_of().watch(stream, capacity)


def test_namespaces_never_share_a_name() -> None:
    tree = tree_of()
    watch = watched(tree)
    keep(tree, text(130), salt=b"a")
    keep(tree, text(130), salt=b"b")
    prefixes = [event.prefix for event in tree.drain_events(watch)]
    assert len(prefixes) == len(set(prefixes)) == 6


def test_a_batch_outlives_its_tree() -> None:
    tree = tree_of()
    keep(tree, text(150))
    batch = tree.drain_events(tree.watch("all"))
    events: list[CacheEvent] = list(batch)
    del tree, batch
    assert [event.tokens for event in events] == [64, 128, 150]


@pytest.mark.parametrize("left", [keep_kv, keep], ids=["a page", "a page and its state"])
def test_one_page_alone_is_cleared_as_all_is(
    left: Callable[[PrefixCache, Tokens], object],
) -> None:
    tree = tree_of()
    watch = watched(tree)
    left(tree, text(64))
    tree.drain_events(watch)
    tree.flush()
    assert told(tree, watch) == [("cleared", 0)]

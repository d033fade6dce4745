"""The cache's reports as plain values equal its C++ values, also in another process."""

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, TreeConfig
from tasuki.pycache.packed import (
    CacheEvent,
    PackedEvents,
    Standing,
    TreeNode,
    pack_events,
    pack_tree,
)
from tests.harness.trees import branching_prompt, keep, text

CONFIG = TreeConfig(slabs=24, blocks_per_slab=4, pages_per_slab=3, max_ghost_nodes=64)


def lives(tree: PrefixCache, rounds: int) -> Iterator[None]:
    """Run prompts with shared prefixes in two namespaces, in too small a tree."""
    generator = np.random.default_rng(11)
    kinds, held = list(CheckpointKind), []
    for step in range(rounds):
        tokens, salt = branching_prompt(generator, step)
        allocation = tree.allocate(tokens, salt=salt, capacity_tokens=len(tokens), working_slots=1)
        if allocation is not None:
            end = int(generator.integers(allocation.cached_tokens + 1, len(tokens) + 1))
            tree.insert(allocation, end, allocation.working_slots[0], kinds[step % len(kinds)])
            held.append(allocation)
        if len(held) > 2:
            tree.release(held.pop(0))
        if step % 40 == 39:
            tree.flush()
        yield


def plain(packed: type, source: object) -> object:
    """Return a packed value with the fields of the C++ one."""
    values = {name: getattr(source, name) for name in packed.__annotations__}
    for name, value in values.items():
        if isinstance(value, CheckpointKind):
            values[name] = value.value
        elif name == "page":
            values[name] = tuple(value)
        elif name in ("standing", "hidden"):
            values[name] = plain(Standing, value)
    return packed(**values)


@pytest.mark.parametrize("stream", ["all", "usable", "spelled"])
def test_packed_events_are_the_events(stream: str) -> None:
    tree = PrefixCache(CONFIG)
    watch = tree.watch(stream, 8)
    kinds: set[str] = set()
    gaps = 0
    for step, _ in enumerate(lives(tree, 120)):
        # Now and then the reader is too slow.
        if 60 < step < 90:
            continue
        batch = tree.drain_events(watch)
        packed: PackedEvents = pickle.loads(pickle.dumps(pack_events(batch)))
        assert list(packed) == [plain(CacheEvent, event) for event in batch]
        assert len(packed) == len(batch)
        assert (packed.sequence, packed.is_snapshot) == (batch.sequence, batch.is_snapshot)
        if batch.gap is not None:
            gaps += 1
            assert packed.gap is not None
            assert packed.gap.first_lost == batch.gap.first_lost
            assert packed.gap.resync_from == batch.gap.resync_from
        kinds |= {event.kind for event in packed}
    checkpoints = {"checkpoint_stored", "checkpoint_removed"}
    pages = {"page_stored", "page_removed"}
    assert gaps > 0 and checkpoints | (set() if stream == "usable" else pages) <= kinds


def test_a_flush_is_packed_as_one_event_without_names() -> None:
    tree = PrefixCache(CONFIG)
    watch = tree.watch("all")
    keep(tree, text(64))
    tree.drain_events(watch)
    tree.flush()
    (cleared,) = pack_events(tree.drain_events(watch))
    assert (cleared.kind, cleared.prefix, cleared.namespace) == ("cleared", None, None)


def test_a_packed_tree_is_the_tree() -> None:
    tree = PrefixCache(CONFIG)
    for _ in lives(tree, 30):
        view = tree.view(12)
        assert view is not None
        packed = pickle.loads(pickle.dumps(pack_tree(view)))
        assert list(packed) == [plain(TreeNode, node) for node in view]
        assert len(packed) == len(view)

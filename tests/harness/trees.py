"""Trees over small arenas, and the requests that tests play on them."""

import numpy as np
import torch
from numpy.typing import NDArray
from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, Lease, TreeConfig
from tasuki.pycache.copies import run_copies
from tasuki.pycache.prefix_cache import HybridPrefixCache

Tokens = NDArray[np.int32]
END = CheckpointKind.TURN_END


def tree_of(slabs: int = 16, **config: object) -> PrefixCache:
    """Three pages a slab, and room that no page fills."""
    shape: dict[str, object] = {"blocks_per_slab": 8, "pages_per_slab": 3}
    return PrefixCache(TreeConfig(slabs=slabs, **(shape | config)))  # type: ignore[arg-type]


def text(length: int, seed: int = 0, vocabulary: int = 1000) -> Tokens:
    return np.random.default_rng(seed).integers(0, vocabulary, length, dtype=np.int32)


def joined(*parts: Tokens | int) -> Tokens:
    """One prompt of runs and single tokens."""
    return np.concatenate([np.atleast_1d(part) for part in parts]).astype(np.int32)


def take(
    tree: PrefixCache,
    tokens: Tokens,
    capacity: int | None = None,
    slots: int = 1,
    salt: bytes = b"",
) -> Lease:
    lease = tree.allocate(
        tokens, salt=salt, capacity_tokens=capacity or len(tokens), working_slots=slots
    )
    assert lease is not None
    return lease


def take_receive(
    tree: PrefixCache, tokens: Tokens, capacity: int | None = None, slots: int = 1
) -> Lease:
    lease = tree.allocate_to_receive(
        tokens, capacity_tokens=capacity or len(tokens), working_slots=slots
    )
    assert lease is not None
    return lease


def keep(
    tree: PrefixCache,
    tokens: Tokens,
    *ends: int,
    salt: bytes = b"",
    kind: CheckpointKind = END,
) -> Lease:
    """A whole request that leaves a state at each of `ends`, by default at its own; released. The
    last is the one that it worked in."""
    lease = take(tree, tokens, salt=salt)
    *inside, last = ends or (len(tokens),)
    for end in inside:
        slot = tree.take_checkpoint_slot(lease)
        assert slot is not None
        tree.insert(lease, end, slot, kind)
    tree.insert(lease, last, lease.working_slots[0], kind)
    tree.release(lease)
    tree.check_integrity()
    return lease


def keep_kv(tree: PrefixCache, tokens: Tokens) -> None:
    """A request that leaves its whole pages and no state."""
    lease = take(tree, tokens)
    tree.insert(lease, len(tokens) // 64 * 64, None, END)
    tree.release(lease)
    tree.check_integrity()


def usable(tree: PrefixCache, tokens: Tokens) -> int:
    """Of a prompt that goes on behind these tokens."""
    return tree.match(joined(tokens, 5)).usable_tokens


def take_from(cache: HybridPrefixCache, tokens: Tokens, slots: int = 1) -> Lease:
    """Its copies wait."""
    lease = cache.allocate(
        tokens, salt=b"", capacity_tokens=len(tokens), working_slots=slots, cursor=None
    )
    assert lease is not None
    return lease


def slot_bytes(cache: HybridPrefixCache, slot: int) -> torch.Tensor:
    """As float32."""
    layout = cache.arena.layout
    start = slot * layout.slab_bytes
    return cache.arena.bytes[start : start + layout.slot_bytes].view(torch.float32)


def keep_value(cache: HybridPrefixCache, tokens: Tokens, value: float) -> None:
    """A request whose state is full of that value."""
    lease = take_from(cache, tokens)
    run_copies(cache.arena, cache.take_copies())
    slot_bytes(cache, lease.working_slots[0]).fill_(value)
    cache.insert(lease, len(tokens), lease.working_slots[0], END)
    cache.release(lease)

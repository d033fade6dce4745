"""Prefix trees over small arenas, and requests to play on them."""

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, PrefixCache, TreeConfig
from tasuki.pycache.arena import run_copies
from tasuki.pycache.prefix_cache import HybridPrefixCache

Tokens = NDArray[np.int32]
END = CheckpointKind.TURN_END


def tree_of(slabs: int = 16, **config: object) -> PrefixCache:
    """Return a prefix tree over an arena with eight blocks and three pages per slab, so pages leave
    blocks over."""
    shape: dict[str, object] = {"blocks_per_slab": 8, "pages_per_slab": 3}
    return PrefixCache(TreeConfig(slabs=slabs, **(shape | config)))  # type: ignore[arg-type]


def text(length: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, length, dtype=np.int32)


def branching_prompt(generator: np.random.Generator, step: int) -> tuple[Tokens, bytes]:
    """Return a random prompt of five pages of three kinds, cut anywhere, so prompts share prefixes.
    Every fifth prompt is in another namespace (salt)."""
    pages = [np.full(64, token, dtype=np.int32) for token in generator.integers(0, 3, 5)]
    tokens = np.concatenate(pages)[: int(generator.integers(2, 320))]
    return tokens, b"tenant" if step % 5 == 0 else b""


def joined(*parts: Tokens | int) -> Tokens:
    """Return one prompt joined from runs of tokens and single tokens."""
    return np.concatenate([np.atleast_1d(part) for part in parts]).astype(np.int32)


def take(
    tree: PrefixCache,
    tokens: Tokens,
    capacity: int | None = None,
    slots: int = 1,
    salt: bytes = b"",
) -> Allocation:
    allocation = tree.allocate(
        tokens, salt=salt, capacity_tokens=capacity or len(tokens), working_slots=slots
    )
    assert allocation is not None
    return allocation


def take_receive(
    tree: PrefixCache, tokens: Tokens, capacity: int | None = None, slots: int = 1
) -> Allocation:
    allocation = tree.allocate_to_receive(
        tokens, capacity_tokens=capacity or len(tokens), working_slots=slots
    )
    assert allocation is not None
    return allocation


def keep(
    tree: PrefixCache,
    tokens: Tokens,
    *ends: int,
    salt: bytes = b"",
    kind: CheckpointKind = END,
) -> Allocation:
    """Run a whole request and release it. It stores a state after each number of tokens in `ends`,
    by default after all. The last state is its working slot."""
    allocation = take(tree, tokens, salt=salt)
    *inside, last = ends or (len(tokens),)
    for end in inside:
        slot = tree.take_checkpoint_slot(allocation)
        assert slot is not None
        tree.insert(allocation, end, slot, kind)
    tree.insert(allocation, last, allocation.working_slots[0], kind)
    tree.release(allocation)
    tree.check_integrity()
    return allocation


def keep_kv(tree: PrefixCache, tokens: Tokens) -> None:
    """Run a request storing its whole pages and no state."""
    allocation = take(tree, tokens)
    tree.insert(allocation, len(tokens) // 64 * 64, None, END)
    tree.release(allocation)
    tree.check_integrity()


def usable(tree: PrefixCache, tokens: Tokens) -> int:
    """Return the number of usable tokens for a prompt continuing these tokens."""
    return tree.match(joined(tokens, 5)).usable_tokens


def take_from(cache: HybridPrefixCache, tokens: Tokens, slots: int = 1) -> Allocation:
    """Allocate pages and `slots` working slots for these tokens; the needed copies are not run
    yet."""
    allocation = cache.allocate(
        tokens, salt=b"", capacity_tokens=len(tokens), working_slots=slots, cursor=None
    )
    assert allocation is not None
    return allocation


def slot_bytes(cache: HybridPrefixCache, slot: int) -> torch.Tensor:
    """Return the bytes of a slot as float32."""
    layout = cache.arena.layout
    start = slot * layout.slab_bytes
    return cache.arena.bytes[start : start + layout.slot_bytes].view(torch.float32)


def keep_value(cache: HybridPrefixCache, tokens: Tokens, value: float) -> None:
    """Run a request storing a state filled with `value`."""
    allocation = take_from(cache, tokens)
    run_copies(cache.arena, cache.take_copies())
    slot_bytes(cache, allocation.working_slots[0]).fill_(value)
    cache.insert(allocation, len(tokens), allocation.working_slots[0], END)
    cache.release(allocation)

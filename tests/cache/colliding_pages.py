"""Pages with the same value of the tree's hash of a page (cpp_cache/nodes/child_list.cpp).

The hash is FNV-1a in four lanes of 64 bits. Let d be the differences of two runs' words of one
lane, as numbers after the exclusive or. Both runs end in the same state if sum(d[k] * prime**(16 -
k)) = 0 modulo 2**64. A lattice reduction found differences so small that both runs are tokens of
any vocabulary. Each lane has two runs, so there are sixteen pages of one hash.
cpp_cache/tests/collisions.cpp checks two of them with the hash itself.
"""

import itertools
import random

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import PAGE_TOKENS

_PRIME = 0x100000001B3
_STARTS = (0xCBF29CE484222325, 0x84222325CBF29CE4, 0x9CE484222325CBF2, 0x2325CBF29CE48422)
_WORD = 1 << 64
_DIFFERENCES = (-6, 1, -1, 1, 7, 7, -1, -2, -2, 3, -5, -1, 1, 1, 7, -10)
_LANES = len(_STARTS)


def page_hash(page: NDArray[np.int32]) -> int:
    """Return the hash of PAGE_TOKENS tokens, as the tree computes it."""
    lanes = list(_STARTS)
    for place, token in enumerate(page.tolist()):
        lanes[place % _LANES] = (lanes[place % _LANES] ^ token) * _PRIME % _WORD
    value = 0
    for lane in lanes:
        value = (value ^ lane ^ (lane >> 32)) * _PRIME % _WORD
    return value ^ (value >> 32)


def colliding_pages(seed: int = 0, vocabulary: int = 2000) -> list[NDArray[np.int32]]:
    """Return sixteen different pages, int32 [PAGE_TOKENS], with one hash."""
    rng = random.Random(seed)
    runs = [_colliding_runs(start, rng, vocabulary) for start in _STARTS]
    pages = []
    for chosen in itertools.product(*runs):
        page = np.empty(PAGE_TOKENS, dtype=np.int32)
        for lane, run in enumerate(chosen):
            page[lane::_LANES] = run
        pages.append(page)
    assert len({page_hash(page) for page in pages}) == 1
    assert len({page.tobytes() for page in pages}) == 2**_LANES
    return pages


def _colliding_runs(start: int, rng: random.Random, vocabulary: int) -> tuple[list[int], list[int]]:
    """Return two runs of one lane with the same final state."""
    while (runs := _attempt(start, rng, vocabulary)) is None:
        pass
    return runs


def _attempt(start: int, rng: random.Random, vocabulary: int) -> tuple[list[int], list[int]] | None:
    """Return two runs, or None if no token of the vocabulary can continue them."""
    one, other = start, start
    runs: tuple[list[int], list[int]] = ([], [])
    for difference in _DIFFERENCES:
        for token in rng.sample(range(vocabulary), vocabulary):
            mixed = one ^ token
            mixed_too = (mixed + other - one + difference) % _WORD
            # A carry out of the low bits would need a token outside every vocabulary.
            if (token_too := mixed_too ^ other) < vocabulary:
                break
        else:
            return None
        runs[0].append(token)
        runs[1].append(token_too)
        one, other = mixed * _PRIME % _WORD, mixed_too * _PRIME % _WORD
    assert one == other
    return runs

"""The n-gram hash: constants by seed and vocabulary, and the table rows of each token.

Pure. A row's id depends on the last `ngram` token ids alone. A token at or before the last end of
text before a token counts as the end of text, and so does a token before the first. Products are
below 2^63, so int64 arithmetic is exact and never negative.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.config import TableShape

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_MIX = 0xBF58476D1CE4E5B9
_SECOND_MIX = 0x94D049BB133111EB
_TABLE_STEP = 10007
_LARGEST = (1 << 63) - 1


def multipliers(seed: int, table: int, vocab: int, ngram: int) -> tuple[int, ...]:
    """Return the odd factors of the tokens of an n-gram. table: number of the table in its
    model."""
    bound = max(1, _LARGEST // vocab // 2)
    first = seed + _TABLE_STEP * table
    return tuple(
        2 * (_splitmix64((first + _GAMMA * (place + 1)) & _MASK) % bound) + 1
        for place in range(ngram)
    )


def _splitmix64(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST_MIX) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND_MIX) & _MASK
    return value ^ (value >> 31)


def primes_from(start: int, count: int) -> list[int]:
    """Return the first `count` primes from `start` on, ascending."""
    found: list[int] = []
    number = start
    while len(found) < count:
        if _is_prime(number):
            found.append(number)
        number += 1
    return found


def _is_prime(number: int) -> bool:
    if number < 4:
        return number in (2, 3)
    return number % 2 != 0 and all(number % d for d in range(3, math.isqrt(number) + 1, 2))


def row_ids(tokens: Tensor, before: Tensor, end_of_text: int, table: TableShape) -> Tensor:
    """Return the table rows of one sequence's tokens, [T, heads] int64. tokens [T], before [ngram -
    1]: ids, int64; `before` has the ids before the first token, the end of text where there are
    none."""
    context = table.ngram - 1
    history = torch.cat([before, tokens])
    places = torch.arange(len(history))
    ends = torch.where(history == end_of_text, places, -1).cummax(0).values
    # The last end of text strictly before each token.
    last_end = torch.cat([ends.new_full((1,), -1), ends[:-1]])
    mixed = history * table.multipliers[0]
    by_order = []
    for shift in range(1, table.ngram):
        earlier = torch.cat([history.new_full((shift,), end_of_text), history[:-shift]])
        seen = torch.where(places - shift > last_end, earlier, end_of_text)
        mixed = mixed ^ (seen * table.multipliers[shift])
        by_order.append(mixed[context:])
    hashes = torch.stack(by_order, dim=1).repeat_interleave(table.heads_per_ngram, dim=1)
    return hashes % torch.tensor(table.sizes) + torch.tensor(table.offsets)


def context_ids(earlier: Sequence[int], table: TableShape, end_of_text: int) -> Tensor:
    """Return the `before` of row_ids(), int64, from the ids before a sequence's first token. There
    may be more or fewer than needed."""
    wanted = table.ngram - 1
    found = list(earlier)[-wanted:]
    return torch.tensor([end_of_text] * (wanted - len(found)) + found, dtype=torch.int64)

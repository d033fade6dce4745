"""The rows of an n-gram table: which rows a token has, and where they are in memory.

A row's id depends on the last `ngram` token ids alone. A token at or before the last end of
text before a token counts as the end of text, and so does a token before the first. Products are
below 2^63, so int64 arithmetic is exact and never negative.

A table has more rows than a model has other weights, and a token reads a few of them. So its shards
stay where the checkpoint has them: mapped files, with one copy in memory for all ranks of a host.
Rows may be FP8 codes with one scale. They are dequantised when read. Immutable: any thread may
read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class NgramTable:
    """Rows of one table. shards: [rows, dim] each, in order, equally long but for the last. scale
    [1]: factor of every number; None: numbers are stored as they are."""

    shape: TableShape
    shards: tuple[Tensor, ...]
    scale: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(shard.nbytes for shard in self.shards)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows of each token end to end, [T, heads * dim] in dtype. ids [T, heads]
        int64."""
        flat = ids.flatten()
        found = torch.empty(len(flat), self.shape.dim, dtype=dtype)
        each = len(self.shards[0])
        owners = flat // each
        for shard in sorted({*owners.tolist()}):
            places = (owners == shard).nonzero()[:, 0]
            stored = _taken(self.shards[shard], flat[places] - shard * each)
            numbers = stored if self.scale is None else stored.float() * self.scale.float()
            found[places] = numbers.to(dtype)
        return found.view(len(ids), -1)


def _taken(shard: Tensor, rows: Tensor) -> Tensor:
    """Return the given rows of a shard. FP8 codes are taken as bytes, which every build of PyTorch
    can index."""
    if shard.dtype.itemsize == 1:
        return shard.view(torch.uint8).index_select(0, rows).view(shard.dtype)
    return shard.index_select(0, rows)


def shard_lengths(rows: int, shards: int) -> Sequence[int]:
    """Return the number of rows of each published shard of a table. Trailing empty shards are left
    out."""
    each = -(-rows // shards)
    return [min(each, rows - begin) for begin in range(0, rows, each)]

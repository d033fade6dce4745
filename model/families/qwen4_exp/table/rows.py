"""The rows of an n-gram table, in the memory of one host.

A table has more rows than a model has other weights, and a token reads a few of them. So its shards
stay where the checkpoint has them: mapped files, with one copy in memory for all ranks of a host.
Rows may be FP8 codes with one scale. They are dequantised when read. Immutable: any thread may
read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.families.qwen4_exp.config import TableShape


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

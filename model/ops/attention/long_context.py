"""Attention of blocks of queries to the keys long before them, by cuDNN.

Where a block of a run sees all of many keys, cuDNN attends half as fast again as our kernel, which
starts from its result and adds the keys that are left: the diagonal and a remainder. cuDNN needs
keys side by side, so a sequence's pages are gathered first, 1% of the time. It also builds a plan
for every shape, 30 ms each, and keeps it for the calling thread only: so blocks have one size, and
keys come in eight sizes an octave, and `warm` builds all plans.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig

DenseAttention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(q [rows, query_heads, dim], k, v [keys, kv_heads, dim]) to (output like q, log of the sum of
exponentials [rows, query_heads] float32); scores are scaled by dim ** -0.5, nothing is masked."""

_TILE_ROWS = 128
_STEP = 2048
_FEWEST_KEYS = 8192
_SIZES_AN_OCTAVE = 8


@dataclass(frozen=True)
class ContextBlock:
    """Rows [row, row + rows) of the batch, all of `sequence`, attend to its first `keys` keys."""

    row: int
    rows: int
    sequence: int
    keys: int


@dataclass(frozen=True)
class ContextBlocks:
    """Blocks of one forward; each is padded to block_rows, a multiple of 128."""

    blocks: tuple[ContextBlock, ...]
    block_rows: int
    attend: DenseAttention

    @staticmethod
    def of(
        lengths: Sequence[int],
        context_lens: Sequence[int],
        block_rows: int,
        attend: DenseAttention,
    ) -> "ContextBlocks":
        """Cut each run into blocks; what fills no more than half a block, or has few keys before
        it, makes none: there our kernel is as fast."""
        blocks = []
        start = 0
        for sequence, (length, before) in enumerate(zip(lengths, context_lens, strict=True)):
            for row in range(0, length, block_rows):
                rows = min(block_rows, length - row)
                keys = served_keys(before + row)
                if keys and 2 * rows > block_rows:
                    blocks.append(ContextBlock(start + row, rows, sequence, keys))
            start += length
        return ContextBlocks(tuple(blocks), block_rows, attend)

    def served(self, tile_rows: int) -> dict[int, int]:
        """Keys served, by the first row of every tile of a block."""
        return {
            row: block.keys
            for block in self.blocks
            for row in range(block.row, block.row + block.rows, tile_rows)
        }

    def run(self, q: Tensor, kv: Tensor, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, query_heads, head_dim] like q and their log-sums [T, query_heads] float32;
        rows of no block are left unwritten. kv dense, page_table as for our kernel."""
        output = torch.empty_like(q)
        sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        sequence = None
        for block in sorted(self.blocks, key=lambda block: (block.sequence, -block.keys)):
            if block.sequence != sequence:
                sequence = block.sequence
                keys, values = _gather(kv, page_table[sequence], block.keys)
            rows = slice(block.row, block.row + block.rows)
            queries = q[rows]
            if block.rows < self.block_rows:
                queries = q.new_zeros(self.block_rows, *q.shape[1:])
                queries[: block.rows] = q[rows]
            attended, weights = self.attend(queries, keys[: block.keys], values[: block.keys])
            output[rows] = attended[: block.rows]
            sums[rows] = weights[: block.rows]
        return output, sums


def served_keys(before: int) -> int:
    """The largest size of at most that many keys, of eight sizes an octave; 0 where too few."""
    if before < _FEWEST_KEYS:
        return 0
    step = max((1 << before.bit_length() - 1) // _SIZES_AN_OCTAVE, _STEP)
    return before // step * step


def block_rows(query_heads: int, processors: int) -> int:
    """Rows of which all heads' tiles fill the device once or twice with the least left over."""

    def tiles(rounds: int) -> int:
        return max(rounds * processors // query_heads, 1)

    def busy(rounds: int) -> float:
        return min(tiles(rounds) * query_heads / (rounds * processors), 1.0)

    return _TILE_ROWS * tiles(max((1, 2), key=busy))


def warm(config: ModelConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    """Build cuDNN's plans for contexts of up to `tokens`, on the thread that will use them; 30 ms
    each, some 40 for 262144 tokens."""
    rows = block_rows_of(config, device)
    q = torch.zeros(rows, config.query_heads, config.head_dim, dtype=dtype, device=device)
    keys = served_keys(tokens)
    cache = torch.zeros(keys, config.kv_heads, config.head_dim, dtype=dtype, device=device)
    while keys:
        cudnn_attention(q, cache[:keys], cache[:keys])
        keys = served_keys(keys - 1)


def block_rows_of(config: ModelConfig, device: torch.device) -> int:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return block_rows(config.query_heads, processors)


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`DenseAttention`, in 16-bit types."""
    q, k, v = (x.unsqueeze(0).transpose(1, 2) for x in (q, k, v))
    result = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    return result[0].squeeze(0).transpose(0, 1), result[1].view(q.shape[1:3]).transpose(0, 1)


def _gather(kv: Tensor, table: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Keys and values [keys, kv_heads, head_dim] of a sequence; keys: whole pages."""
    pages, kinds, tokens, heads, dim = kv.shape
    halves = kv.view(pages * kinds, -1)
    chosen = table[: keys // tokens] * kinds
    shape = (keys, heads, dim)
    return (
        halves.index_select(0, chosen).view(shape),
        halves.index_select(0, chosen + 1).view(shape),
    )

"""Attention of blocks of queries to the keys long before them, by cuDNN.

If every query of a block sees all of many keys, cuDNN is 1.5 times as fast as our kernel. Our
kernel starts from its result and adds the remaining keys: those on the causal diagonal, and a
remainder. cuDNN needs keys side by side, so a sequence's pages are gathered first, 1% of the time.
It also builds a plan for every shape, 30 ms each, for the calling thread only. So blocks have one
size, keys come in eight sizes per octave, and `warm` builds all plans.

The gathered bytes are bounded: in contexts beyond MOST_KEYS a block attends to one range of keys
after the other. Invariant: each range has a size of which a plan exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import PAGE_TOKENS

from .page_rows import holds_fp8

DenseAttention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function of attention without a mask: it maps q [rows, query_heads, dim] and k, v [keys,
kv_heads, dim] to (output, weights). output: like q. weights: [rows, query_heads] float32, log of
the sum of exponentials of the scores. Scores are scaled by dim ** -0.5."""

_TILE_ROWS = 128
_STEP = 2048
_FEWEST_KEYS = 8192
_SIZES_AN_OCTAVE = 8
MOST_KEYS = 2**18
"""Largest number of keys gathered at a time. With 4 heads of 256 two-byte elements, keys and values
take 1 GiB."""


@dataclass(frozen=True)
class ContextBlock:
    """A block of queries: rows [row, row + rows) of the batch, all of one `sequence`. They attend
    to the sequence's first `keys` keys."""

    row: int
    rows: int
    sequence: int
    keys: int


@dataclass(frozen=True)
class ContextBlocks:
    """The blocks of queries of one forward. block_rows: rows of a padded block, a multiple of 128.
    attend: the attention function. most_keys: number of keys gathered at a time."""

    blocks: tuple[ContextBlock, ...]
    block_rows: int
    attend: DenseAttention
    most_keys: int = MOST_KEYS

    @staticmethod
    def of(
        lengths: Sequence[int],
        context_lens: Sequence[int],
        block_rows: int,
        attend: DenseAttention,
    ) -> "ContextBlocks":
        """Divide each sequence's rows into blocks, and return these. A remainder of at most half a
        block, or with few keys before it, makes no block, because our own kernel is as fast there.
        lengths, context_lens: tokens of each sequence in this forward, and before it."""
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
        """Return, by the first row of every tile of `tile_rows` rows, the number of keys attended
        to in blocks. Tiles outside blocks are absent."""
        return {
            row: block.keys
            for block in self.blocks
            for row in range(block.row, block.row + block.rows, tile_rows)
        }

    def run(self, q: Tensor, kv: Tensor, page_table: Tensor) -> tuple[Tensor, Tensor]:
        """Compute attention of all blocks. Return outputs [T, query_heads, head_dim] like q, and
        log-sums of exponentials [T, query_heads] float32. Rows outside blocks are unwritten. kv:
        dense pages; page_table: [B, pages per row]."""
        output = torch.empty_like(q)
        sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        for sequence in sorted({block.sequence for block in self.blocks}):
            blocks = [block for block in self.blocks if block.sequence == sequence]
            table = page_table[sequence]
            for start in range(0, max(block.keys for block in blocks), self.most_keys):
                self._attend_piece(blocks, start, q, kv, table, output, sums)
        return output, sums

    def _attend_piece(
        self,
        blocks: Sequence[ContextBlock],
        start: int,
        q: Tensor,
        kv: Tensor,
        table: Tensor,
        output: Tensor,
        sums: Tensor,
    ) -> None:
        """Gather the keys [start, start + most_keys) of one sequence, and add their attention to
        the results of its blocks. The gathered keys are freed on return."""
        longest = max(block.keys for block in blocks) - start
        keys, values = _gather(kv, table, start, min(longest, self.most_keys), q.dtype)
        for block in blocks:
            seen = min(block.keys - start, self.most_keys)
            if seen <= 0:
                continue
            rows = slice(block.row, block.row + block.rows)
            queries = q[rows]
            if block.rows < self.block_rows:
                queries = q.new_zeros(self.block_rows, *q.shape[1:])
                queries[: block.rows] = q[rows]
            attended, weights = self.attend(queries, keys[:seen], values[:seen])
            if start:
                _join(output[rows], sums[rows], attended[: block.rows], weights[: block.rows])
            else:
                output[rows] = attended[: block.rows]
                sums[rows] = weights[: block.rows]


def served_keys(before: int) -> int:
    """Return the largest planned number of keys up to `before`; 0 if `before` is small. There are
    eight planned sizes per power of two."""
    if before < _FEWEST_KEYS:
        return 0
    step = max((1 << before.bit_length() - 1) // _SIZES_AN_OCTAVE, _STEP)
    return before // step * step


def block_rows(query_heads: int, processors: int) -> int:
    """Return the number of rows of a block. With it, the tiles of all heads fill the device once or
    twice, with the fewest idle multiprocessors."""

    def tiles(rounds: int) -> int:
        return max(rounds * processors // query_heads, 1)

    def busy(rounds: int) -> float:
        return min(tiles(rounds) * query_heads / (rounds * processors), 1.0)

    return _TILE_ROWS * tiles(max((1, 2), key=busy))


def warm(config: DeltaNetConfig, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
    """Build cuDNN's plans for contexts of up to `tokens` tokens. Call it on the thread of the later
    forwards. A plan takes 30 ms; 262144 tokens and more need about 40 plans."""
    rows = block_rows_of(config, device)
    q = torch.zeros(rows, config.query_heads, config.head_dim, dtype=dtype, device=device)
    keys = served_keys(min(tokens, MOST_KEYS))
    cache = torch.zeros(keys, config.kv_heads, config.head_dim, dtype=dtype, device=device)
    while keys:
        cudnn_attention(q, cache[:keys], cache[:keys])
        keys = served_keys(keys - 1)


def block_rows_of(config: DeltaNetConfig, device: torch.device) -> int:
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return block_rows(config.query_heads, processors)


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `DenseAttention` with cuDNN, in a 16-bit dtype. Return its output and weights."""
    q, k, v = (x.unsqueeze(0).transpose(1, 2) for x in (q, k, v))
    result = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    return result[0].squeeze(0).transpose(0, 1), result[1].view(q.shape[1:3]).transpose(0, 1)


def gathered_bytes(config: DeltaNetConfig, tokens: int, dtype: torch.dtype) -> int:
    """Return the largest size in bytes of the gathered keys and values, for contexts of up to
    `tokens` tokens. It is 0 unless dtype has 16 bits."""
    if dtype.itemsize != 2:
        return 0
    keys = min(served_keys(tokens), MOST_KEYS)
    return 2 * keys * config.kv_heads * config.head_dim * dtype.itemsize


def _join(output: Tensor, sums: Tensor, attended: Tensor, weights: Tensor) -> None:
    """Add attention over later keys to that over earlier keys, in place. output, sums: result and
    log-sums of the earlier keys; attended, weights: those of the later keys."""
    both = torch.logaddexp(sums, weights)
    earlier, later = ((part - both).exp().unsqueeze(-1) for part in (sums, weights))
    output.copy_(output * earlier + attended * later)
    sums.copy_(both)


def _gather(
    kv: Tensor, table: Tensor, start: int, keys: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Gather and return keys and values, each [keys, kv_heads, head_dim], of a sequence from
    position `start` on. `start` and `keys` are whole pages. dtype: dtype of the result for FP8
    rows."""
    if holds_fp8(kv):
        pages = table[start // PAGE_TOKENS :]
        # Import it here: a CPU's memory plan uses this file too, and need not have Triton.
        from .gathered_rows import gathered_rows

        return gathered_rows(kv, pages, keys // PAGE_TOKENS, dtype)
    _, heads, kinds, tokens, dim = kv.shape
    lines = kv.view(-1, dim)
    # Heads of a token lie side by side, as planned for cuDNN: the strides do not depend on the
    # keys.
    within = torch.arange(tokens, device=kv.device, dtype=table.dtype)[:, None]
    head = torch.arange(heads, device=kv.device, dtype=table.dtype)
    page = table[start // tokens :][: keys // tokens, None, None]
    chosen = ((page * heads + head) * (kinds * tokens) + within).flatten()
    shape = (keys, heads, dim)
    return (
        lines.index_select(0, chosen).view(shape),
        lines.index_select(0, chosen + tokens).view(shape),
    )

"""Rows with drafts as numbers on a GPU: two batches, of sequences and of their tokens, and what
neither of them has.

Owns them; their addresses never change, so that graphs may be captured over them. Thread rule and
copies: as in device_batch.
"""

import torch
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.device_batch import DeviceBatch, SamplingTable
from tasuki.engine.runner.sequence_states import ResolvedRows
from tasuki.model.batch import VerifyBatch
from tasuki.model.ops.sampling.sample import Draws

from .guess_starts import GuessStarts

_IDS, _COUNTS = range(2)


class DraftedRows:
    """At most `capacity` rows of at most `width` tokens; scratch_lane: as for a DeviceBatch."""

    def __init__(self, capacity: int, width: int, scratch_lane: int, device: torch.device) -> None:
        self._sequences = DeviceBatch(capacity, scratch_lane, device)
        self._tokens = DeviceBatch(capacity * width, scratch_lane, device)
        # Graphs look up the embeddings of tokens that mean nothing too, so that all are valid ids.
        self._numbers = torch.zeros(2, capacity * width, dtype=torch.int32, device=device)
        every = torch.arange(capacity, dtype=torch.int32, device=device)
        self._owners = {some: every.repeat_interleave(some) for some in range(1, width + 1)}

    def clear(self) -> None:
        """No row counts from here on in the stream."""
        self._sequences.clear()
        self._tokens.clear()

    def fill(
        self, rows: ResolvedRows, each: ResolvedRows, ids: Ints, sampling: SamplingTable
    ) -> None:
        """each: token_rows() of the rows; ids [rows, width]: of these."""
        self._sequences.fill(rows, sampling)
        self._tokens.fill(each, sampling)
        host = torch.zeros(self._numbers.shape, dtype=torch.int32, pin_memory=True)
        numbers = host.numpy()
        numbers[_IDS, : ids.size] = ids.reshape(-1)
        numbers[_COUNTS, : len(rows)] = rows.lengths
        self._numbers.copy_(host, non_blocking=True)

    def read(self) -> Tensor:
        """As DeviceBatch.read(), by tokens."""
        return self._tokens.read()

    @property
    def tokens(self) -> Tensor:
        """[1]: how many tokens count, or stand between those."""
        return self._tokens.rows

    def ids(self, size: int, width: int) -> Tensor:
        return self._numbers[_IDS, : size * width]

    def put(self, places: Tensor, tokens: Tensor) -> None:
        """What was drawn elsewhere behind the tokens at these places: int64, int32."""
        self._tokens.draws(self._numbers.shape[1]).token.index_copy_(0, places, tokens)

    def starts(self, count: int, width: int, hidden: Tensor) -> GuessStarts:
        """Behind what was drawn last of each of the first `count` rows, of `width` tokens. hidden
        [at least count, at least width, dim]: of each token."""
        drawn = self.draws(count, width).token.view(count, width)
        ids, counts = self.ids(count, width).view(count, width), self._numbers[_COUNTS, :count]
        return GuessStarts.behind(drawn, ids, counts, hidden[:count, :width])

    def draws(self, size: int, width: int) -> Draws:
        return self._tokens.draws(size * width)

    def batch(self, size: int, width: int, table: Tensor) -> VerifyBatch:
        """The first `size` rows of `width` tokens as the model takes them. table [rows, pages]."""
        rows = self._sequences.decode_batch(size, table)
        return VerifyBatch(
            positions=self._tokens.decode_batch(size * width, table).positions,
            owners=self._owners[width][: size * width],
            token_rows=self._tokens.rows,
            counts=self._numbers[_COUNTS, :size],
            context_lens=rows.context_lens,
            page_table=rows.page_table,
            read_slots=rows.read_slots,
            rows=rows.rows,
        )

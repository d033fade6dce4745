"""Rows behind which the draft layer guesses, as numbers on a GPU.

Owns them, and the hidden states that go from one guess to the next; their addresses never change,
so that graphs may be captured over them. Thread rule and copies: as in device_batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.engine.runner.device_batch import DeviceBatch, SamplingTable
from tasuki.engine.runner.sequence_states import ResolvedRows
from tasuki.engine.runner.verify.guess_starts import GuessStarts
from tasuki.model.batch import DecodeBatch
from tasuki.model.ops.sampling.sample import Draws

from .guess_chain import GuessChain


class GuessRows:
    """At most `capacity` rows; scratch_lane: as for a DeviceBatch."""

    def __init__(
        self, capacity: int, width: int, dtype: torch.dtype, scratch_lane: int, device: torch.device
    ) -> None:
        """width, dtype: of hidden states."""
        self._numbers = DeviceBatch(capacity, scratch_lane, device)
        self._left = torch.zeros(capacity, dtype=torch.int32, device=device)
        self._hidden = torch.zeros(capacity, width, dtype=dtype, device=device)
        self.counts = torch.ones(capacity, dtype=torch.int32, device=device)
        """Tokens of a row."""

    def clear(self) -> None:
        """No row counts from here on in the stream."""
        self._numbers.clear()

    def fill(self, rows: ResolvedRows, wanted: Sequence[int], sampling: SamplingTable) -> None:
        """rows: of one token, the one behind which drafts are guessed, where it stands if no draft
        of the forward held. wanted: drafts of each, at least one."""
        self._numbers.fill(rows, sampling)
        host = torch.zeros(self._left.shape, dtype=torch.int32, pin_memory=True)
        host.numpy()[: len(rows)] = wanted
        self._left.copy_(host, non_blocking=True)

    def begin(self, starts: GuessStarts, limit: int) -> None:
        """Of the rows that were filled, in their order; limit: as for GuessChain."""
        count = len(starts.tokens)
        self.draws(count).token.copy_(starts.tokens)
        self._hidden[:count].copy_(starts.hidden)
        self._chain(count).begin(starts.further, limit)

    def advance(self, count: int) -> None:
        """Of so many rows: the next guess is behind what was drawn last."""
        self._chain(count).advance()

    def _chain(self, count: int) -> GuessChain:
        # A draft stands behind its context.
        contexts = self.draws(count).positions
        return GuessChain(self._numbers.positions(count), contexts, self._left[:count])

    @property
    def rows(self) -> Tensor:
        """[1]: how many rows count."""
        return self._numbers.rows

    def lanes(self, count: int) -> Tensor:
        return self._numbers.lanes(count)

    def hidden(self, size: int) -> Tensor:
        """[size, width]: of the token before each; the graph writes that of each."""
        return self._hidden[:size]

    def draws(self, size: int) -> Draws:
        """Their tokens are those behind which the next guess is, until it is drawn."""
        return self._numbers.draws(size)

    def batch(self, size: int, table: Tensor) -> DecodeBatch:
        """The first `size` rows as the model takes them. table [rows, pages]."""
        return self._numbers.decode_batch(size, table)

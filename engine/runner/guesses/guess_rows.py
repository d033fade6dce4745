"""Rows behind which the draft layer guesses, as numbers on a GPU.

Owns them, and the hidden states that go from one guess to the next; their addresses never change,
so that graphs may be captured over them. Thread rule and copies: as in device_batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.device_batch import DeviceBatch, SamplingTable
from tasuki.engine.runner.last_tokens import LastTokens
from tasuki.engine.runner.sequence_states import ResolvedRows
from tasuki.engine.runner.verify.drafted_rows import LastDrawn
from tasuki.model.batch import DecodeBatch
from tasuki.model.ops.draft.chain import Chain, ChainStarts
from tasuki.model.ops.sampling.sample import Draws

_LEFT, _PLACES, _SLOTS, _WIDTH = range(4)


class GuessRows:
    """At most `capacity` rows."""

    def __init__(
        self, capacity: int, width: int, lanes: LastTokens, carry: Tensor, verified: LastDrawn
    ) -> None:
        """width: of hidden states. carry [slots, width]. verified: of the rows that verified drafts
        last, at the addresses that they always have."""
        device = carry.device
        self._numbers = DeviceBatch(capacity, lanes.scratch, device)
        self._seats = torch.zeros(4, capacity, dtype=torch.int32, device=device)
        self._hidden = torch.zeros(capacity, width, dtype=verified.hidden.dtype, device=device)
        self._lanes = lanes
        self._carry = carry
        self._verified = verified
        self.counts = torch.ones(capacity, dtype=torch.int32, device=device)
        """Tokens of a row."""

    def clear(self) -> None:
        """No row counts from here on in the stream."""
        self._numbers.clear()

    def fill(
        self,
        rows: ResolvedRows,
        wanted: Sequence[int],
        places: Sequence[int],
        slots: Ints,
        width: int,
        sampling: SamplingTable,
    ) -> None:
        """rows: of one token, the one behind which drafts are guessed, where it stands if no draft
        of the forward held. wanted: drafts of each, at least one. places: of each among the rows
        that verified drafts last, `width` tokens each; -1: it was not among them, and begins with
        its lane's token and what its slot carries."""
        self._numbers.fill(rows, sampling)
        host = torch.zeros(self._seats.shape, dtype=torch.int32, pin_memory=True)
        seats = host.numpy()
        seats[_LEFT, : len(rows)] = wanted
        seats[_PLACES, : len(rows)] = places
        seats[_SLOTS, : len(rows)] = slots
        seats[_WIDTH] = width
        self._seats.copy_(host, non_blocking=True)

    @property
    def rows(self) -> Tensor:
        """[1]: how many rows count."""
        return self._numbers.rows

    def lanes(self, size: int) -> Tensor:
        return self._numbers.lanes(size)

    def chain(self, size: int) -> Chain:
        draws = self.draws(size)
        return Chain(
            tokens=draws.token,
            hidden=self._hidden[:size],
            positions=self._numbers.positions(size),
            # A draft stands behind its context.
            context_lens=draws.positions,
            left=self._seats[_LEFT, :size],
            rows=self.rows,
        )

    def starts(self, size: int) -> ChainStarts:
        verified = self._verified
        return ChainStarts(
            places=self._seats[_PLACES, :size],
            lanes=self.lanes(size),
            slots=self._seats[_SLOTS, :size],
            last_tokens=self._lanes.all,
            carry=self._carry,
            width=self._seats[_WIDTH, :1],
            drawn=verified.drawn,
            ids=verified.ids,
            counts=verified.counts,
            hidden=verified.hidden,
        )

    def draws(self, size: int) -> Draws:
        """Their tokens are those behind which the next guess is, until it is drawn."""
        return self._numbers.draws(size)

    def batch(self, size: int, table: Tensor) -> DecodeBatch:
        """The first `size` rows as the model takes them. table [rows, pages]: of these rows."""
        return self._numbers.decode_batch(size, table)

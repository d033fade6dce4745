"""The chain of draft-layer passes in PyTorch: the reference of `chain.py`, with the same results.
Only tests use it.

A row that needs no further draft, or is past the model's last position, has position -1. It writes
nothing into its pages, and its draft is ignored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChainPlaces:
    """State of n rows in a chain of drafts, all int32. positions: position of the token before the
    next draft; context_lens: number of tokens up to and including it; left: number of drafts still
    wanted."""

    positions: Tensor
    context_lens: Tensor
    left: Tensor

    def begin(self, further: Tensor, limit: int) -> None:
        """Begin the chain. further [n]: number of accepted tokens, added to context_lens. limit:
        number of positions of the model; it bounds `left`."""
        self.context_lens.add_(further)
        self.left.copy_(torch.minimum(self.left, limit + 1 - self.context_lens))
        self._stand()

    def advance(self) -> None:
        """Move each row on by one drafted token. A finished row keeps its context_lens, so that
        every entry up to there is written."""
        self.left.sub_(1)
        self.context_lens.add_(self.left > 0)
        self._stand()

    def _stand(self) -> None:
        going = self.left > 0
        self.positions.copy_(torch.where(going, self.context_lens - 1, -1))


def accepted(drawn: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """Return the number of accepted drafts of each row, [n] int64: the first drafts equal to the
    token sampled before them. ids [n, T]: a token, then its drafts; counts [n]: number of valid
    ids; drawn [n, T]: token sampled after each id."""
    drafts = torch.arange(1, ids.shape[1], device=ids.device)
    holds = (drawn[:, :-1] == ids[:, 1:]) & (drafts < counts[:, None])
    return holds.long().cumprod(1).sum(1)

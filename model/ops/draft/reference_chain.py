"""How guesses stand one behind the other, in PyTorch: the oracle of `chain.py`, whose numbers these
are. Nothing but tests computes it.

A row of which no more is wanted, or which would go past the model's last position, stands at
position -1: it leaves nothing in its pages, and what is guessed of it counts for nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChainPlaces:
    """Of n rows, all int32. context_lens: up to the token whose guess is next, which stands at
    `positions`; left: guesses that are wanted, that one included."""

    positions: Tensor
    context_lens: Tensor
    left: Tensor

    def begin(self, further: Tensor, limit: int) -> None:
        """From the context_lens and left that are wanted. further [n]: is added to the former.
        limit: positions that the model has."""
        self.context_lens.add_(further)
        self.left.copy_(torch.minimum(self.left, limit + 1 - self.context_lens))
        self._stand()

    def advance(self) -> None:
        """To the token that was guessed. Who is done keeps a context that is written."""
        self.left.sub_(1)
        self.context_lens.add_(self.left > 0)
        self._stand()

    def _stand(self) -> None:
        going = self.left > 0
        self.positions.copy_(torch.where(going, self.context_lens - 1, -1))


def accepted(drawn: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """[n] int64: how many drafts of each row are what was drawn before them, up to the first that
    is not. ids [n, T]: a token and drafts, of which counts [n] mean something; drawn [n, T]: behind
    each of these."""
    drafts = torch.arange(1, ids.shape[1], device=ids.device)
    holds = (drawn[:, :-1] == ids[:, 1:]) & (drafts < counts[:, None])
    return holds.long().cumprod(1).sum(1)

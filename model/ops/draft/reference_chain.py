"""Steps of guesses in PyTorch: the reference of `chain.py`, with the same numbers. Only tests
compute it.

A row without a further wanted guess, or past the model's last position, is at position -1. It
leaves nothing in its pages, and its guess is ignored.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ChainPlaces:
    """State of n rows, all int32. context_lens: up to the next guess's token, at `positions`; left:
    wanted guesses, including it."""

    positions: Tensor
    context_lens: Tensor
    left: Tensor

    def begin(self, further: Tensor, limit: int) -> None:
        """Begin from the wanted context_lens and left. further [n]: added to the former. limit:
        positions of the model."""
        self.context_lens.add_(further)
        self.left.copy_(torch.minimum(self.left, limit + 1 - self.context_lens))
        self._stand()

    def advance(self) -> None:
        """Step to the guessed token. A finished row keeps a context with written entries."""
        self.left.sub_(1)
        self.context_lens.add_(self.left > 0)
        self._stand()

    def _stand(self) -> None:
        going = self.left > 0
        self.positions.copy_(torch.where(going, self.context_lens - 1, -1))


def accepted(drawn: Tensor, ids: Tensor, counts: Tensor) -> Tensor:
    """Return [n] int64: number of drafts of each row equal to the token sampled before them, up to
    the first other one. ids [n, T]: a token and drafts, with counts [n] valid ones; drawn [n, T]:
    tokens sampled behind each of them."""
    drafts = torch.arange(1, ids.shape[1], device=ids.device)
    holds = (drawn[:, :-1] == ids[:, 1:]) & (drafts < counts[:, None])
    return holds.long().cumprod(1).sum(1)

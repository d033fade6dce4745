"""How a row's place moves while drafts are guessed one behind the other: numbers on the device, in
place, which a captured graph reads.

A row of which no more is wanted, or which would go past the model's last position, stands at
position -1: it leaves nothing in its pages, and what is guessed of it counts for nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GuessChain:
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

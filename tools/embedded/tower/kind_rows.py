"""Rows of a picture by its figure's kind: the first stage of the tower's training.

Half of a picture's rows are those of its colour, the rest those of its shape. Both are learnt
through the frozen trunk, without a tower. The tower then learns to make these rows from pixels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .scenes import Colour, Shape


class KindRows(nn.Module):
    """Learnt rows of each colour and each shape."""

    def __init__(self, tokens: int, hidden: int, spread: float) -> None:
        """tokens: rows of a picture. spread: of a row's elements before the training."""
        super().__init__()
        half = tokens // 2
        self.colours = nn.Parameter(spread * torch.randn(len(Colour), half, hidden))
        self.shapes = nn.Parameter(spread * torch.randn(len(Shape), tokens - half, hidden))

    def forward(self, kinds: Tensor) -> Tensor:
        """Return the rows [B, tokens, hidden] of kinds [B, 2]: numbers of colour and shape."""
        chosen = (
            functional.embedding(numbers, table.flatten(1)).unflatten(1, table.shape[1:])
            for numbers, table in zip(kinds.T, (self.colours, self.shapes), strict=True)
        )
        return torch.cat(list(chosen), 1)

    def blurred(self, kinds: Tensor, noise: float) -> Tensor:
        """Return the rows with noise of this share of their size. No tower makes them exactly."""
        rows = self.forward(kinds)
        size = rows.detach().square().mean((1, 2), keepdim=True).sqrt()
        return rows + noise * size * torch.randn_like(rows)

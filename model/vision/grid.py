"""The grid of one picture: its patches and tokens, their order, and their positions for the tower.

A picture is one image or one pair of video frames. Its patches come in squares of merge x merge,
one square a token. The order is square row, square column, row in the square, column in it. All
functions are pure. Source: transformers 5.24, `vision_utils.py`.

A front computes sizes of grids without torch, so functions over tensors import it themselves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class PictureError(ValueError):
    """Error: a picture cannot be served. The message names the cause and the fix."""


@dataclass(frozen=True)
class PictureGrid:
    """The grid of one picture. rows, columns: size in patches, multiples of `merge`; merge: side of
    a token in patches. Raises PictureError."""

    rows: int
    columns: int
    merge: int

    def __post_init__(self) -> None:
        least = min(self.rows, self.columns, self.merge)
        if least < 1 or self.rows % self.merge or self.columns % self.merge:
            raise PictureError(
                f"a grid of {self.rows} x {self.columns} patches is not whole in squares of "
                f"{self.merge}; resize the picture to such squares"
            )

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    @property
    def token_rows(self) -> int:
        return self.rows // self.merge

    @property
    def token_columns(self) -> int:
        return self.columns // self.merge

    @property
    def tokens(self) -> int:
        return self.token_rows * self.token_columns

    def places(self) -> "tuple[Tensor, Tensor]":
        """Return the row and the column of each patch, in patch order, both [patches] int64."""
        import torch

        rows = torch.arange(self.rows)[:, None].expand(self.rows, self.columns)
        columns = torch.arange(self.columns).expand(self.rows, self.columns)
        return self._in_order(rows), self._in_order(columns)

    def _in_order(self, raster: "Tensor") -> "Tensor":
        """Return values [rows, columns] in patch order, [patches]."""
        squares = (self.token_rows, self.merge, self.token_columns, self.merge)
        return raster.reshape(squares).transpose(1, 2).flatten()


@dataclass(frozen=True)
class PositionTaps:
    """Interpolation of each patch's position from four learned positions. index [patches, 4] int64:
    rows of the table; weight [patches, 4] float32, with sum 1."""

    index: "Tensor"
    weight: "Tensor"

    @staticmethod
    def of(grid: PictureGrid, side: int) -> "PositionTaps":
        """Return the bilinear interpolation for a grid, from a square table of `side` x `side`
        learned positions.

        Corners are aligned: the grid's first and last patch take the table's first and last
        position.
        """
        import torch

        rows, columns = grid.places()
        upper, lower, down = _taps(rows, grid.rows, side)
        left, right, across = _taps(columns, grid.columns, side)
        corners = [
            (upper, 1 - down, left, 1 - across),
            (upper, 1 - down, right, across),
            (lower, down, left, 1 - across),
            (lower, down, right, across),
        ]
        return PositionTaps(
            torch.stack([row * side + column for row, _, column, _ in corners], dim=1),
            torch.stack([by_row * by_column for _, by_row, _, by_column in corners], dim=1),
        )

    def rows(self, table: "Tensor") -> "Tensor":
        """Return the patches' positions, [patches, hidden] float32, interpolated from the table of
        learned positions [side * side, hidden]. The result is on the table's device."""
        import torch

        index, weight = self.index.to(table.device), self.weight.to(table.device)
        total = table.new_zeros(len(index), table.shape[1], dtype=torch.float32)
        for tap in range(index.shape[1]):
            total += table[index[:, tap]] * weight[:, tap, None]
        return total


def _taps(index: "Tensor", count: int, side: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Interpolate along one axis. Return, for indices [n] of `count` patches, the learned position
    before, the one after, and the weight of the one after."""
    source = index.float() * (side - 1) / max(count - 1, 1)
    before = source.floor()
    first = before.long().clamp(max=side - 1)
    return first, (first + 1).clamp(max=side - 1), source - before


def rotary_angles(grid: PictureGrid, head_dim: int, theta: float) -> "tuple[Tensor, Tensor]":
    """Return cos and sin of the rotary angles, each [patches, 1, head_dim / 2] float32. Element j
    of a head rotates with element j + head_dim / 2.

    The first half of the pairs rotates with the patch's row, the second with its column, both from
    the highest frequency down. REQUIRES: head_dim is a multiple of 4.
    """
    import torch

    exponents = torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2)
    frequencies = 1.0 / theta**exponents
    angles = [places.float()[:, None] * frequencies for places in grid.places()]
    turned = torch.cat(angles, dim=1)[:, None, :]
    return turned.cos(), turned.sin()

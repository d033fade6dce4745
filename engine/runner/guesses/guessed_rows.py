"""Drafts that were guessed, on their way to the host.

Owns nothing. Thread rule: the engine loop's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class GuessedRows:
    """Of the plan's rows of these numbers, as many drafts as `wanted`: of each a column of `drawn`
    [steps, n] int32."""

    rows: Sequence[int]
    wanted: Sequence[int]
    drawn: Tensor

    def tokens(self) -> dict[int, tuple[int, ...]]:
        """By rows. REQUIRES: the stream has come this far."""
        columns = self.drawn.T.tolist()
        return {
            row: tuple(column[:count])
            for row, count, column in zip(self.rows, self.wanted, columns, strict=True)
        }

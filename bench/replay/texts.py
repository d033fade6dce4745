"""A trace's tokens within a model's vocabulary.

A trace's token stands for a place in a text; equal ones are equal here. Where nodes have answered,
later prompts hold what they answered. Thread rule: one thread.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MIXED = np.uint64(0x9E3779B97F4A7C15)


class Texts:
    def __init__(self, vocabulary: int) -> None:
        """vocabulary: ids below it are drawn."""
        self._vocabulary = np.uint64(vocabulary)
        self._answered: dict[int, int] = {}

    def prompt(self, tokens: NDArray[np.int32]) -> tuple[int, ...]:
        """tokens: one-dimensional, of the trace."""
        drawn = (tokens.astype(np.uint64) * _MIXED >> np.uint64(32)) % self._vocabulary
        return tuple(
            self._answered.get(place, token)
            for place, token in zip(tokens.tolist(), drawn.tolist(), strict=True)
        )

    def answer(self, tokens: NDArray[np.int32], answer: Sequence[int]) -> None:
        """tokens: the answer's of the trace, as many as were answered."""
        self._answered.update(zip(tokens.tolist(), answer, strict=True))

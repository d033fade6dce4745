"""A trace's tokens within a model's vocabulary.

A trace's token stands for a place in a text; equal ones are equal here. Where nodes have answered,
later prompts hold what they answered. Thread rule: one thread.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MIXED = np.uint64(0x9E3779B97F4A7C15)
_AGAIN = np.uint64(0x94D049BB133111EB)


class Texts:
    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        """vocabulary: ids below it are drawn. seed: texts of different ones share nothing."""
        self._vocabulary = np.uint64(vocabulary)
        self._seed = np.uint64(seed) << np.uint64(32)
        self._answered: dict[int, int] = {}

    def prompt(self, tokens: NDArray[np.int32]) -> tuple[int, ...]:
        """tokens: one-dimensional, of the trace."""
        mixed = (tokens.astype(np.uint64) + self._seed) * _MIXED
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _AGAIN
        drawn = (mixed >> np.uint64(32)) % self._vocabulary
        return tuple(
            self._answered.get(place, token)
            for place, token in zip(tokens.tolist(), drawn.tolist(), strict=True)
        )

    def answer(self, tokens: NDArray[np.int32], answer: Sequence[int]) -> None:
        """tokens: the answer's of the trace, as many as were answered."""
        self._answered.update(zip(tokens.tolist(), answer, strict=True))

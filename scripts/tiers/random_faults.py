"""Faults of copies, drawn from a seed."""

from collections import Counter

import numpy as np

from tests.harness.tiers import Fault


class RandomFaults:
    """One piece of so many goes wrong. Called on the copier's thread alone."""

    def __init__(self, seed: int, one_of: int) -> None:
        self._random = np.random.default_rng(seed)
        self._one_of = one_of
        self.made: Counter[str] = Counter()

    def __call__(self, name: str) -> Fault | None:
        if self._random.integers(self._one_of):
            return None
        fault = list(Fault)[self._random.integers(len(Fault))]
        self.made[fault.name.lower()] += 1
        return fault

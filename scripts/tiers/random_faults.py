"""Faults of copies, drawn from a seed."""

import threading
from collections import Counter

import numpy as np

from tests.harness.tiers import Fault


class RandomFaults:
    """One piece of so many goes wrong. Thread rule: any."""

    def __init__(self, seed: int, one_of: int) -> None:
        self._random = np.random.default_rng(seed)
        self._one_of = one_of
        self.made: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> Fault | None:
        with self._lock:
            if self._random.integers(self._one_of):
                return None
            fault = list(Fault)[self._random.integers(len(Fault))]
            self.made[fault.name.lower()] += 1
        return fault

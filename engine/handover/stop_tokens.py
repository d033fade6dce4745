"""Which tokens end whose answer: of all answers together as an array, of one exactly.

Owns a set a request. Thread rule: the engine loop's. Invariant: may_end() is true at least where
ends() is for some request that was added.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import Ints
from tasuki.engine.messages import RequestId

_LARGEST = np.iinfo(np.int32).max


class StopTokens:
    def __init__(self) -> None:
        self._of: dict[RequestId, frozenset[int]] = {}
        self._count: Counter[frozenset[int]] = Counter()
        self._all: Ints | None = None
        """None: to be gathered anew."""

    def add(self, request_id: RequestId, tokens: frozenset[int]) -> None:
        """Of a request that has none yet."""
        self._of[request_id] = tokens
        self._count[tokens] += 1
        if self._count[tokens] == 1:
            self._all = None

    def remove(self, request_id: RequestId) -> None:
        tokens = self._of.pop(request_id)
        self._count[tokens] -= 1
        if not self._count[tokens]:
            del self._count[tokens]
            self._all = None

    def ends(self, request_id: RequestId, token: int) -> bool:
        return token in self._of[request_id]

    def may_end(self, tokens: Ints) -> NDArray[np.bool_]:
        """[n]: whether the token ends anybody's answer."""
        if self._all is None:
            named = frozenset[int]().union(*self._count)
            # A client may name what no token is.
            self._all = np.array([t for t in named if 0 <= t <= _LARGEST], dtype=np.int32)
        return np.isin(tokens, self._all)

"""Where in texts that were seen a few tokens stood last, and what followed them.

Owns the newest `capacity` tokens of all texts, in a ring, and a table of places by a hash of the
tokens before each; both are of fixed size. A place that the table has is checked token by token, so
what is found is what was there. A text has a salt and is found by nobody who has another, or the
speed of one tenant's answers would show what others write. Thread rule: the engine loop's.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import Ints

ANCHOR_TOKENS = 6
"""Before a place, by which it is found: fewer would find too much, more too little."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class SuffixIndex:
    def __init__(self, capacity: int) -> None:
        """capacity: tokens that are remembered."""
        bits = max(8, capacity.bit_length() + 1)
        self._shift = np.uint64(64 - bits)
        self._table: NDArray[np.int64] = np.zeros(1 << bits, dtype=np.int64)
        self._ring: Ints = np.zeros(capacity, dtype=np.int32)
        self._end = 1
        """Places are numbered from 1 on, for ever; this is the next one."""
        self._starts: deque[int] = deque()
        self._salts: deque[bytes] = deque()

    def begin(self, salt: bytes) -> None:
        """A text, which the next tokens are of."""
        self._starts.append(self._end)
        self._salts.append(salt)
        while len(self._starts) > 1 and self._starts[1] <= self._oldest:
            self._starts.popleft()
            self._salts.popleft()

    def append(self, tokens: Ints) -> None:
        """To the text that was begun last."""
        tokens = tokens[-len(self._ring) :]
        if not len(tokens):
            return
        places = np.arange(self._end, self._end + len(tokens))
        self._ring[places % len(self._ring)] = tokens
        self._end += len(tokens)
        places = places[places >= self._starts[-1] + ANCHOR_TOKENS]
        places = places[places >= self._oldest + ANCHOR_TOKENS]
        if len(places):
            before = places[:, None] + np.arange(-ANCHOR_TOKENS, 0)
            self._table[self._slots(self._ring[before % len(self._ring)])] = places

    def follow(self, last: Sequence[int], salt: bytes, most: int) -> list[int]:
        """At most so many tokens that followed these where they stood last; none where they did
        not. last: ANCHOR_TOKENS."""
        anchor = np.asarray(last, dtype=np.int32)
        place = int(self._table[self._slots(anchor[None])[0]])
        if not self._oldest + ANCHOR_TOKENS <= place < self._end:
            return []
        text = bisect_right(self._starts, place) - 1
        starts = self._starts
        if starts[text] > place - ANCHOR_TOKENS or self._salts[text] != salt:
            return []
        if not np.array_equal(self._read(place - ANCHOR_TOKENS, place), anchor):
            return []
        end = starts[text + 1] if text + 1 < len(starts) else self._end
        found: list[int] = self._read(place, min(place + most, end)).tolist()
        return found

    @property
    def _oldest(self) -> int:
        return max(1, self._end - len(self._ring))

    def _read(self, start: int, stop: int) -> Ints:
        return self._ring[np.arange(start, stop) % len(self._ring)]

    def _slots(self, anchors: Ints) -> NDArray[np.uint64]:
        """[n] of anchors [n, ANCHOR_TOKENS]."""
        hashed = np.zeros(len(anchors), dtype=np.uint64)
        for column in anchors.T.astype(np.uint64):
            hashed = (hashed ^ column) * _FACTOR
            hashed ^= hashed >> np.uint64(29)
        return (hashed * _FACTOR) >> self._shift

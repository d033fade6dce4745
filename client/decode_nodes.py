"""The decode nodes that a client may place sessions on: which to ask, which to leave alone for now.

Knows addresses, no channels. Any thread may use it. Invariant: a node that failed is not drawn for
a while as long as there are others, so that a thousand sessions do not each find out.
"""

import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from threading import Lock

from tasuki.utils.signatures import Clock

DRAWN = 2
"""Nodes that are compared: the better of two is nearly as good as the best of all, and what many
clients ask of a fleet stays small."""
MOST_ASKED = 8
"""Where those do not answer."""
_LEFT_ALONE_SECONDS = 5.0


class DecodeNodes:
    def __init__(self, addresses: Sequence[str], clock: Clock = time.monotonic) -> None:
        """addresses: HOST:PORT each, of which there is one at least and none twice."""
        if not addresses or len({*addresses}) != len(addresses):
            raise ValueError(f"name decode nodes, each once: not {list(addresses)}")
        self.addresses = tuple(addresses)
        self._clock = clock
        self._failed: dict[str, float] = {}
        self._placed: Counter[str] = Counter()
        self._lock = Lock()

    def in_turn(self, without: Collection[str]) -> list[str]:
        """At most MOST_ASKED in a random order, those that failed lately behind the others; of all,
        where only those are left that the caller does without."""
        with self._lock:
            now = self._clock()
            failed = {node for node, at in self._failed.items() if now - at < _LEFT_ALONE_SECONDS}
        open_to = [node for node in self.addresses if node not in without] or [*self.addresses]
        random.shuffle(open_to)
        return sorted(open_to, key=failed.__contains__)[:MOST_ASKED]

    def failed(self, node: str) -> None:
        with self._lock:
            self._failed[node] = self._clock()

    def answered(self, node: str) -> None:
        with self._lock:
            self._failed.pop(node, None)

    def placed(self, node: str) -> int:
        """Sessions that are there."""
        with self._lock:
            return self._placed[node]

    def moved(self, before: str | None, after: str | None) -> None:
        """A session goes from one to the other. None: it is opened, or closed."""
        with self._lock:
            if before is not None:
                self._placed[before] -= 1
            if after is not None:
                self._placed[after] += 1

"""Reusable memory for the KV gathered from one context's pages at a time.

Otherwise every layer of every step would take fresh memory for a long context from the system and
give it back. The page faults took five times as long as the copy: half of a step after 5,000
tokens.

Owns this memory. Invariant: rows read into it stay until the next read of the same kind (`Place`).
Thread rule: one thread.
"""

from collections import defaultdict
from enum import Enum

import torch
from torch import Tensor

_GROWS = 1.25
"""Factor by which newly allocated memory exceeds the request. A context grows by a page every 64
steps, and this avoids a new allocation for each page."""
_LOOKED_AFTER = 4096
"""Number of reads between two checks of the size. Memory is given back if none of these reads
needed half of it."""


class Place(Enum):
    """Kind of rows in the memory. STORED_KEYS, STORED_VALUES: rows as the pages store them. KEYS,
    VALUES: the same rows converted to numbers of another dtype."""

    STORED_KEYS = "stored keys"
    STORED_VALUES = "stored values"
    KEYS = "keys"
    VALUES = "values"


class RowRoom:
    def __init__(self) -> None:
        self._held: dict[Place, Tensor] = {}
        self._needed: defaultdict[Place, int] = defaultdict(int)
        self._reads = 0

    @property
    def bytes(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def rows(
        self, place: Place, count: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return memory [count, width] for rows of this kind, with undefined content. The next call
        for the same `place` reuses it."""
        size = count * width
        self._give_back()
        self._needed[place] = max(self._needed[place], size)
        held = self._held.get(place)
        if held is None or len(held) < size or held.dtype != dtype or held.device != device:
            # The memory belongs to no single forward, so a forward with gradients may write it too.
            with torch.inference_mode(False):
                held = torch.empty(int(size * _GROWS), dtype=dtype, device=device)
            self._held[place] = held
        return held[:size].view(count, width)

    def _give_back(self) -> None:
        self._reads += 1
        if self._reads % _LOOKED_AFTER:
            return
        for place, held in [*self._held.items()]:
            if len(held) > 2 * _GROWS * self._needed[place]:
                del self._held[place]
        self._needed.clear()

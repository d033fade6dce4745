"""Memory for the pages of one context after the other.

Without it every layer of every step takes fresh memory for a long context from the system and gives
it back. The page faults took five times as long as the copy: half of a step behind 5,000 tokens.

Owns this memory. Invariant: read rows stay until the next read into the same place. Thread rule:
one thread.
"""

from collections import defaultdict
from enum import Enum

import torch
from torch import Tensor

_GROWS = 1.25
"""Factor of new memory. A context grows by a page every 64 steps, and not each page should cause a
move."""
_LOOKED_AFTER = 4096
"""Reads between two checks. Memory is given back if none of these reads needed half of it."""


class Place(Enum):
    """Content of the memory. STORED: rows in the form of pages. Others: the same rows as numbers of
    another kind."""

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
        """Return [count, width] with any content."""
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

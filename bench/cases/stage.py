"""The memory that kernel cases share: one arena in a published shape, filled with random values."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.known_models import published_or_folder
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import FP8_ROWS

# Several times any GPU's L2 cache.
OVERFLOW_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Stage:
    """The arena is in the 9B shape, whose heads the other published shapes share or exceed. kv:
    what its pages hold, as of a `CacheLayout`."""

    device: torch.device
    slabs: int
    kv: str = "bfloat16"

    @cached_property
    def model(self) -> ModelConfig:
        return published_or_folder("9b")

    @cached_property
    def arena(self) -> Arena:
        layout = self.model.cache_layout(self.kv, "bfloat16", "float32")
        arena = Arena(layout, self.slabs, self.device)
        if self.kv == FP8_ROWS:
            # Codes and scales below those that are no numbers.
            arena.bytes.random_(0, 126)
            return arena
        # bfloat16 pairs read as float32 are of the same size, so the states are random as well.
        arena.bytes.view(torch.bfloat16).normal_()
        return arena

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=torch.bfloat16)

    def ints(self, values: object) -> Tensor:
        return torch.tensor(values, device=self.device, dtype=torch.int32)

    def page_ids(self, count: int, first: int = 0) -> Tensor:
        """[count] int32, in the order in which a request that is alone gets them."""
        layout = self.arena.layout
        ids = torch.arange(first, first + count, device=self.device)
        slab, page = ids // layout.pages_per_slab, ids % layout.pages_per_slab
        return (slab * layout.blocks_per_slab + page).int()

    def rows(self, count: int) -> Tensor:
        return self.ints([count])


def turns_to_overflow(bytes_a_turn: float, most: int = 256) -> int:
    """How many turns on memory of their own until no cache holds what the first one used."""
    return max(1, min(most, -(-OVERFLOW_BYTES // int(bytes_a_turn))))

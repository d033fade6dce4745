"""Strong ids of the physical cache. A page id is q = slab * blocks_per_slab + k; a slot id is its
slab."""

from typing import NewType

PageId = NewType("PageId", int)
SlotId = NewType("SlotId", int)

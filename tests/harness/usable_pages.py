"""The pages of a node that a request may count on, as its own events name them."""

from collections.abc import Sequence

import numpy as np

from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.daemons import Node


def usable_pages(node: Node) -> set[bytes]:
    """Names of those that lead to a state."""
    pages: dict[bytes, bytes] = {}
    usable: set[bytes] = set()
    for event in next(iter(node.client.watch_cache("all"))):
        if event.kind == "page_stored":
            pages[event.prefix] = event.parent
        elif event.kind == "checkpoint_stored":
            place = event.parent if event.tokens % PAGE_TOKENS else event.prefix
            while place in pages and place not in usable:
                usable.add(place)
                place = pages[place]
    return usable


def names_of_pages(text: Sequence[int]) -> list[bytes]:
    """Of its whole pages, the first one first, where no tenant asks."""
    return prefix_hashes(np.array(text, dtype=np.int32), b"")[1:]

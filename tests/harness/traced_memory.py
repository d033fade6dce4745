"""Measures the memory Python's objects take while a block runs."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def growing() -> Iterator[Callable[[], int]]:
    """Yield a function returning the growth of allocated memory since the block's start, in
    bytes."""
    gc.collect()
    tracemalloc.start()
    begun = tracemalloc.get_traced_memory()[0]

    def grown() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - begun

    try:
        yield grown
    finally:
        tracemalloc.stop()

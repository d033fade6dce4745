"""How much memory Python's objects take while a block runs."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def growing() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the growth of held memory since the beginning, in bytes."""
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

"""What a rogue prefill node says that it holds: the beginning of the prompt that is asked next.

Thread rule: any. Invariant: a stream begins with a snapshot and goes on as the attack does.
"""

import threading
from collections.abc import Callable, Iterator

import numpy as np

from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS

_AGAIN_SECONDS = 0.5
"""Between two batches where nothing has changed."""


class Listing:
    """Of nothing, until it holds a prompt."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stored = pb.Prefixes()

    def hold(self, prompt: tuple[int, ...], salt: bytes) -> None:
        """Its whole pages, and nothing that was held before."""
        end = (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
        *_, parent, name = prefix_hashes(np.array(prompt[:end], dtype=np.int32), salt)
        with self._changed:
            self._stored = pb.Prefixes(names=name, parents=parent, tokens=[end])
            self._changed.notify_all()

    def batches(self, goes_on: Callable[[], bool]) -> Iterator[pb.UsableBatch]:
        """A snapshot each time."""
        sequence = 0
        while goes_on():
            sequence += 1
            yield pb.UsableBatch(sequence=sequence, snapshot=True, stored=self._stored)
            with self._changed:
                self._changed.wait(_AGAIN_SECONDS)

"""A cache of recomputable values, bounded by bytes.

Owns its values. Thread rule: any thread. Invariants: entries never take more bytes than the
capacity, as counted by the cache's users. Each entry counts at least ENTRY_BYTES, so the number of
entries is bounded too. The least recently used entry is evicted first.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

ENTRY_BYTES = 300
"""Estimated overhead of an entry in bytes, besides the content of its key and value."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """A cache with the least recently used entry evicted first. used: bytes of all entries."""

    def __init__(self, capacity: int) -> None:
        """Set up an empty cache. capacity: largest number of bytes; with 0 no value is ever
        kept."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.used = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, content_bytes: int) -> None:
        """Keep a value under its key. content_bytes: bytes of the key and the value. A value larger
        than the capacity is not kept."""
        size = content_bytes + ENTRY_BYTES
        if size > self._capacity:
            return
        with self._lock:
            replaced = self._held.pop(key, None)
            self.used += size - (0 if replaced is None else replaced[1])
            self._held[key] = (value, size)
            while self.used > self._capacity:
                _, (_, freed) = self._held.popitem(last=False)
                self.used -= freed

"""Queue of messages of many transfers to one peer, sent in order and in batches. A batch has all
messages queued while the previous batch was written.

Owns the queue. Knows no transfers and no stream. Thread rule: the event loop; one task takes
batches. Invariant: a batch has at most MOST_MESSAGES messages, and exceeds MOST_BYTES only by its
last message.
"""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from tasuki.transfer.failpoints import ARMED

MOST_MESSAGES = 256
"""Most messages of a batch. A peer sending a larger batch is rejected: heartbeats wait while the
event loop reads one."""
MOST_BYTES = 1 << 20
"""Bytes after which a batch takes no further message: the size of a prompt of 262,144 tokens. So
messages wait for at most one such prompt."""

# With failpoints, send each message at once: before a failure all earlier messages are out.
_AT_ONCE = 1 if ARMED else MOST_MESSAGES


class Said(Protocol):
    def ByteSize(self) -> int:
        """Return the message's bytes on the wire; protobuf messages have this method."""


Message = TypeVar("Message", bound=Said)


class Outbox(Generic[Message]):
    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a message; never waits. Dropped if the outbox is closed."""
        if not self._closed:
            self._waiting.append(message)
            self._changed.set()

    def close(self) -> None:
        """Close the outbox: queued messages are delivered, new ones dropped. Idempotent."""
        self._closed = True
        self._changed.set()

    async def take(self) -> list[Message]:
        """Wait for messages and return them as the next batch, limited in size; empty once the
        outbox is closed and empty."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        batch: list[Message] = []
        size = 0
        while self._waiting and len(batch) < _AT_ONCE and size <= MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += batch[-1].ByteSize()
        return batch

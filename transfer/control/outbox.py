"""What is to be said in many rooms to one peer, in the order in which it was said, a batch at a
time: as much as has gathered while the batch before was written.

Owns the queue. Knows no rooms and no stream. Thread rule: the event loop; one task takes.
Invariant: a batch has MOST_MESSAGES at most, and more than MOST_BYTES only in its last message.
"""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar

from tasuki.transfer.failpoints import ARMED

MOST_MESSAGES = 256
"""A peer that says more at once is refused: its messages are read in one turn of the event loop,
which beats wait for."""
MOST_BYTES = 1 << 20
"""A prompt of 262,144 tokens has as many: what waits behind it does not wait for another one."""

# A process that is to fail at a place has said what comes before it.
_AT_ONCE = 1 if ARMED else MOST_MESSAGES


class Said(Protocol):
    def ByteSize(self) -> int:
        """Of the message on the wire, as protobuf has it."""


Message = TypeVar("Message", bound=Said)


class Outbox(Generic[Message]):
    def __init__(self) -> None:
        self._waiting: deque[Message] = deque()
        self._closed = False
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Never waits. Dropped where the outbox is closed."""
        if not self._closed:
            self._waiting.append(message)
            self._changed.set()

    def close(self) -> None:
        """What was put leaves; nothing more is taken. Idempotent."""
        self._closed = True
        self._changed.set()

    async def take(self) -> list[Message]:
        """What leaves next, once there is something; empty at the end."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        batch: list[Message] = []
        size = 0
        while self._waiting and len(batch) < _AT_ONCE and size <= MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += batch[-1].ByteSize()
        return batch

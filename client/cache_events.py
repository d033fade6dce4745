"""Cache events as they come over the wire: the batches that PrefixIndex follows.

The wire carries neither why a state is kept nor a page's tokens. A namespace, the name of the empty
prefix under the same salt, is None of nodes that do not send it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.engine.messages.proto import EVENT, GAP
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache.packed import CacheEvent, EventGap

from .channel import Wire


@dataclass(frozen=True)
class EventBatch:
    """Changes up to `sequence`, or a snapshot that replaces every earlier batch."""

    sequence: int
    is_snapshot: bool
    gap: EventGap | None
    events: tuple[CacheEvent, ...]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[CacheEvent]:
        return iter(self.events)


class CacheWatch:
    """Reads the batches of one WatchEvents call. `cancel` ends it."""

    def __init__(self, wire: Wire, stream: str) -> None:
        """Begin the call. stream: usable or all. Raises ClientError, and ValueError."""
        wanted = pb.WatchEventsRequest.Stream.Value(f"STREAM_{stream.upper()}")
        request = pb.WatchEventsRequest(stream=wanted)
        self._call = wire.stream(wire.stubs().admin.WatchEvents, request)
        self._events: list[CacheEvent] = []
        self._gap: EventGap | None = None

    async def next_batch(self) -> EventBatch | None:
        """Return the next batch, or None at the end. Raises ClientError."""
        while (part := await self._call.read()) is not None:
            if (batch := self._take(part)) is not None:
                return batch
        return None

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()

    def _take(self, part: pb.WatchEventsResponse) -> EventBatch | None:
        """The batch, once this is its last part."""
        if part.HasField("gap"):
            self._gap = GAP.from_wire(part.gap)
        self._events += (
            EVENT.from_wire(event, checkpoint_kind=None, page=()) for event in part.events
        )
        if part.more:
            return None
        batch = EventBatch(part.sequence, part.snapshot, self._gap, tuple(self._events))
        self._events, self._gap = [], None
        return batch

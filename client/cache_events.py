"""Cache events as they come over the wire: the batches that PrefixIndex follows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..proto import inference_pb2 as pb


@dataclass(frozen=True)
class CacheEvent:
    """kind: page_stored, page_removed, checkpoint_stored, checkpoint_removed or cleared. tokens:
    the prefix's length. prefix, parent: 16 bytes each; None of cleared."""

    sequence: int
    kind: str
    tokens: int
    prefix: bytes | None
    parent: bytes | None


@dataclass(frozen=True)
class EventGap:
    """Events first_lost..resync_from are not told one by one."""

    first_lost: int
    resync_from: int


@dataclass(frozen=True)
class EventBatch:
    """Changes up to `sequence`, or a snapshot that replaces all that was told before."""

    sequence: int
    is_snapshot: bool
    gap: EventGap | None
    events: tuple[CacheEvent, ...]

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[CacheEvent]:
        return iter(self.events)


def batches(parts: Iterable[pb.WatchEventsResponse]) -> Iterator[EventBatch]:
    """Joins the parts of each batch."""
    events: list[CacheEvent] = []
    gap: EventGap | None = None
    for part in parts:
        if part.HasField("gap"):
            gap = EventGap(part.gap.first_lost, part.gap.resync_from)
        events += (
            CacheEvent(e.sequence, e.kind, e.tokens, e.prefix or None, e.parent or None)
            for e in part.events
        )
        if not part.more:
            yield EventBatch(part.sequence, part.snapshot, gap, tuple(events))
            events, gap = [], None

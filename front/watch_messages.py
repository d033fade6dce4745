"""Batches of cache events as wire messages, in parts that fit one."""

from collections.abc import Iterator
from itertools import islice

from ..proto import inference_pb2 as pb
from ..pycache._cpp_cache import CacheEvent, EventBatch

EVENTS_A_MESSAGE = 4096


def _event(event: CacheEvent) -> pb.CacheEvent:
    return pb.CacheEvent(
        sequence=event.sequence,
        kind=event.kind,
        tokens=event.tokens,
        prefix=event.prefix or b"",
        parent=event.parent or b"",
        namespace=event.namespace or b"",
    )


def parts_of(batch: EventBatch) -> Iterator[pb.WatchEventsResponse]:
    """At least one, also of an empty snapshot. The gap, if any, stands in the first."""
    gap = batch.gap
    told = None
    if gap is not None:
        told = pb.EventGap(first_lost=gap.first_lost, resync_from=gap.resync_from)
    events = iter(batch)
    left = len(batch)
    while True:
        part = [_event(event) for event in islice(events, EVENTS_A_MESSAGE)]
        left -= len(part)
        yield pb.WatchEventsResponse(
            sequence=batch.sequence,
            snapshot=batch.is_snapshot,
            gap=told,
            events=part,
            more=left > 0,
        )
        told = None
        if left == 0:
            return

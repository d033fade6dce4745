"""How the last requests ended, by id: the source of `explain`.

Owns a bounded memory of messages; the oldest goes first. Timelines, the largest part of a message,
are kept of fewer requests. One event loop's thread.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tasuki.engine.messages import Evicted, Eviction, Finished, Rejected, RequestId

_MOST_EVICTIONS = 256


@dataclass(frozen=True)
class EndedRequest:
    """ended_at: seconds of the log's clock."""

    end: Finished | Rejected
    ended_at: float


class RequestLog:
    def __init__(
        self, clock: Callable[[], float], capacity: int = 4096, timelines: int = 256
    ) -> None:
        self._clock = clock
        self._capacity = capacity
        self._timelines = timelines
        self._drawn: deque[RequestId] = deque()
        self._ended: OrderedDict[RequestId, EndedRequest] = OrderedDict()
        self._took: OrderedDict[str, list[Eviction]] = OrderedDict()

    def add(self, end: Finished | Rejected) -> None:
        """An id that is used again names its last request."""
        self._ended[end.request_id] = EndedRequest(end, self._clock())
        self._ended.move_to_end(end.request_id)
        if len(self._ended) > self._capacity:
            self._ended.popitem(last=False)
        if isinstance(end, Finished) and _has_timeline(end):
            self._drawn.append(end.request_id)
            if len(self._drawn) > self._timelines:
                self._forget_timeline(self._drawn.popleft())

    def evicted(self, message: Evicted) -> None:
        """Remember for whom the cache made room."""
        for eviction in message.evictions:
            if eviction.taken_by is not None:
                self._took.setdefault(eviction.taken_by, []).append(eviction)
        while len(self._took) > self._capacity:
            self._took.popitem(last=False)

    def took(self, request_id: str) -> tuple[Eviction, ...]:
        """What the cache gave up for the request, oldest first; the last of very many."""
        return tuple(self._took.get(request_id, ())[-_MOST_EVICTIONS:])

    def _forget_timeline(self, request_id: RequestId) -> None:
        ended = self._ended.get(request_id)
        if ended is None or not isinstance(ended.end, Finished) or not _has_timeline(ended.end):
            return
        usage = ended.end.usage
        assert usage.transfer is not None
        # What was pulled was pulled for a hand-over, which has a timeline too.
        pulled = None if usage.pulled is None else replace(usage.pulled, timeline=None)
        transfer = replace(usage.transfer, timeline=None)
        bare = replace(usage, transfer=transfer, pulled=pulled)
        self._ended[request_id] = replace(ended, end=replace(ended.end, usage=bare))

    def find(self, request_id: str) -> tuple[EndedRequest, float] | None:
        """The request and how many seconds ago it ended; None where it is not remembered."""
        ended = self._ended.get(RequestId(request_id))
        return None if ended is None else (ended, self._clock() - ended.ended_at)


def _has_timeline(end: Finished) -> bool:
    return end.usage.transfer is not None and end.usage.transfer.timeline is not None

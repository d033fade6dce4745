"""How the last requests ended, by id: the source of `explain`.

Owns a bounded memory: the oldest goes first. An end is kept as bytes, a tenth of what its objects
hold, since few are ever asked for. Timelines, the largest part of an end, are kept of fewer
requests. One event loop's thread.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from tasuki.engine.messages import Evicted, Eviction, Finished, Rejected
from tasuki.engine.messages.packing import packer, reader_of

_pack = packer().encode
_READ = {kind: reader_of(kind) for kind in (Finished, Rejected)}

_MOST_EVICTIONS = 256
"""Of one request."""


@dataclass(frozen=True, slots=True)
class _Packed:
    kind: type[Finished | Rejected]
    end: bytes
    ended_at: float


@dataclass(frozen=True)
class EndedRequest:
    """ended_at: seconds of the log's clock."""

    end: Finished | Rejected
    ended_at: float


class RequestLog:
    def __init__(
        self,
        clock: Callable[[], float],
        capacity: int = 4096,
        timelines: int = 256,
        evictions: int = 16384,
    ) -> None:
        """evictions: of all requests together."""
        self._clock = clock
        self._capacity = capacity
        self._most_timelines = timelines
        self._most_evictions = evictions
        self._ended: OrderedDict[str, _Packed] = OrderedDict()
        self._with_timeline: OrderedDict[str, bytes] = OrderedDict()
        self._took: OrderedDict[str, list[Eviction]] = OrderedDict()
        self._evictions = 0

    def add(self, end: Finished | Rejected) -> None:
        """An id that is used again names its last request."""
        name = end.request_id
        self._with_timeline.pop(name, None)
        bare = _without_timeline(end)
        if bare is not end:
            self._with_timeline[name] = _pack(end)
        self._ended[name] = _Packed(type(end), _pack(bare), self._clock())
        self._ended.move_to_end(name)
        if len(self._ended) > self._capacity:
            self._ended.popitem(last=False)
        if len(self._with_timeline) > self._most_timelines:
            self._with_timeline.popitem(last=False)

    def evicted(self, message: Evicted) -> None:
        """Remember for whom the cache made room."""
        for eviction in message.evictions:
            if eviction.taken_by is None:
                continue
            took = self._took.setdefault(eviction.taken_by, [])
            took.append(eviction)
            self._evictions += 1
            if len(took) > _MOST_EVICTIONS:
                del took[0]
                self._evictions -= 1
        while len(self._took) > self._capacity or self._evictions > self._most_evictions:
            _, forgotten = self._took.popitem(last=False)
            self._evictions -= len(forgotten)

    def took(self, request_id: str) -> tuple[Eviction, ...]:
        """What the cache gave up for the request, oldest first; the last of very many."""
        return tuple(self._took.get(request_id, ()))

    def find(self, request_id: str) -> tuple[EndedRequest, float] | None:
        """The request and how many seconds ago it ended; None where it is not remembered."""
        found = self._ended.get(request_id)
        if found is None:
            return None
        end = _READ[found.kind](self._with_timeline.get(request_id, found.end))
        return EndedRequest(end, found.ended_at), self._clock() - found.ended_at


def _without_timeline(end: Finished | Rejected) -> Finished | Rejected:
    """The same object where it has none."""
    if isinstance(end, Rejected) or (transfer := end.usage.transfer) is None:
        return end
    if transfer.timeline is None:
        return end
    # What was pulled was pulled for a hand-over, which has a timeline too.
    pulled = None if end.usage.pulled is None else replace(end.usage.pulled, timeline=None)
    bare = replace(end.usage, transfer=replace(transfer, timeline=None), pulled=pulled)
    return replace(end, usage=bare)

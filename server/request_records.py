"""The requests known to a front by id: those in flight, and the last ended ones.

RequestNames: request ids. Each caller has a separate namespace; the engine has one for all callers.
Owns the ids of requests in flight, of remembered ended ones, and of calls not yet made. One event
loop's thread. Invariants: an id in flight is taken for its caller and free for all others. The
engine uses the caller's own id for a request unless another caller's request has it. No two calls
of a caller have reserved the same id.

RequestLog: the ends of the last requests, by id: the source of `tasuki explain`. Owns a bounded
number of ends: the oldest is dropped first. An end is kept as bytes, a tenth of its objects'
memory, because few are ever read. Timelines and long lists of pictures, the largest parts of an
end, are kept for fewer requests. One event loop's thread.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from tasuki.engine.messages import Evicted, Eviction, Finished, Rejected, RequestId
from tasuki.engine.messages.types import packer, reader_of
from tasuki.server.auth.callers import Caller, Scope
from tasuki.utils.signatures import Clock

_Owned = tuple[str, RequestId]
"""The owner of an engine's id: the caller's name, and the caller's own id for the request."""


class RequestNames:
    def __init__(self, remembered: int = 4096) -> None:
        """Set up the names. remembered: number of ended requests with kept ids."""
        self._remembered = remembered
        self._owners: dict[RequestId, _Owned] = {}
        self._names: dict[_Owned, RequestId] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._reserved: set[_Owned] = set()

    @contextmanager
    def reserved(self, caller: Caller, given: RequestId) -> Iterator[RequestId]:
        """Reserve an id for the caller inside `with`. It is `given` if no other call and no request
        in flight of the caller has it, otherwise a new one."""
        if (caller.name, given) in self._reserved or self.is_in_flight(caller, given):
            given = RequestId(uuid4().hex)
        self._reserved.add((caller.name, given))
        try:
            yield given
        finally:
            self._reserved.discard((caller.name, given))

    def is_in_flight(self, caller: Caller, given: RequestId) -> bool:
        """Return True if a request of this caller with the id `given` is in flight, not if it has
        ended."""
        name = self._names.get((caller.name, given))
        return name is not None and name not in self._ended

    def take(self, caller: Caller, given: RequestId) -> RequestId:
        """Return the engine's id for the caller's request, new unless remembered, and mark `given`
        as in flight. REQUIRES: not is_in_flight."""
        owned = (caller.name, given)
        name = self._names.get(owned) or self._unused(given)
        self._ended.pop(name, None)
        self._owners[name], self._names[owned] = owned, name
        return name

    def end(self, name: RequestId) -> None:
        """Record the end of the request with the engine's id `name`. Ids unknown to take() are
        ignored."""
        if name not in self._owners:
            return
        self._ended[name] = None
        self._ended.move_to_end(name)
        if len(self._ended) > self._remembered:
            oldest, _ = self._ended.popitem(last=False)
            del self._names[self._owners.pop(oldest)]

    def find(self, caller: Caller, given: str) -> RequestId | None:
        """Return the engine's id for the caller's request `given`; None if there is none, or if it
        is another caller's. Operators may give any of the engine's ids: theirs is returned
        unchecked."""
        own = self._names.get((caller.name, RequestId(given)))
        if own is None and caller.may(Scope.OPERATOR):
            return RequestId(given)
        return own

    def _unused(self, given: RequestId) -> RequestId:
        if given not in self._owners:
            return given
        others = (RequestId(f"{given}~{number}") for number in itertools.count(2))
        return next(name for name in others if name not in self._owners)


_pack = packer().encode
_READ = {kind: reader_of(kind) for kind in (Finished, Rejected)}

_MOST_EVICTIONS = 256
"""Largest number of evictions remembered for one request."""


@dataclass(frozen=True, slots=True)
class _Packed:
    kind: type[Finished | Rejected]
    end: bytes
    ended_at: float


@dataclass(frozen=True)
class EndedRequest:
    """One ended request. ended_at: time of its end, in seconds of the log's clock."""

    end: Finished | Rejected
    ended_at: float


class RequestLog:
    def __init__(
        self,
        clock: Clock,
        capacity: int = 4096,
        timelines: int = 256,
        evictions: int = 16384,
    ) -> None:
        """Set up the log. capacity: number of ended requests kept. timelines: number of timelines
        kept. evictions: number of evictions kept for all requests together."""
        self._clock = clock
        self._capacity = capacity
        self._most_timelines = timelines
        self._most_evictions = evictions
        self._ended: OrderedDict[str, _Packed] = OrderedDict()
        self._with_timeline: OrderedDict[str, bytes] = OrderedDict()
        self._took: OrderedDict[str, list[Eviction]] = OrderedDict()
        self._evictions = 0

    def add(self, end: Finished | Rejected) -> None:
        """Add an ended request; drop an old one if full. A reused id means the newer request."""
        name = end.request_id
        self._with_timeline.pop(name, None)
        bare = _brief(end)
        if bare is not end:
            self._with_timeline[name] = _pack(end)
        self._ended[name] = _Packed(type(end), _pack(bare), self._clock())
        self._ended.move_to_end(name)
        if len(self._ended) > self._capacity:
            self._ended.popitem(last=False)
        if len(self._with_timeline) > self._most_timelines:
            self._with_timeline.popitem(last=False)

    def evicted(self, message: Evicted) -> None:
        """Record the cache's evictions by the id of their request; skip those without one."""
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
        """Return the cache's remembered evictions for the request, oldest first; only the last
        _MOST_EVICTIONS."""
        return tuple(self._took.get(request_id, ()))

    def find(self, request_id: str) -> tuple[EndedRequest, float] | None:
        """Return the ended request, perhaps without timeline, and the seconds since its end; None
        if it is not remembered."""
        found = self._ended.get(request_id)
        if found is None:
            return None
        end = _READ[found.kind](self._with_timeline.get(request_id, found.end))
        return EndedRequest(end, found.ended_at), self._clock() - found.ended_at


_FEW_PICTURES = 4


def _brief(end: Finished | Rejected) -> Finished | Rejected:
    """Return the request's end without its transfer timeline, and with few pictures one by one; the
    same object if it has neither."""
    if isinstance(end, Rejected):
        return end
    pictures = end.usage.pictures
    if pictures is not None and len(pictures.each) > _FEW_PICTURES:
        few = replace(pictures, each=pictures.each[-_FEW_PICTURES:])
        end = replace(end, usage=replace(end.usage, pictures=few))
    transfer = end.usage.transfer
    if transfer is None or transfer.timeline is None:
        return end
    # A pull serves a hand-over, and the hand-over has a timeline too.
    pulled = None if end.usage.pulled is None else replace(end.usage.pulled, timeline=None)
    bare = replace(end.usage, transfer=replace(transfer, timeline=None), pulled=pulled)
    return replace(end, usage=bare)

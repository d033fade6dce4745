"""Request ids: each caller has a namespace of its own, and the engine one for all callers.

Owns the ids of requests in flight, of remembered ended ones, and of calls that may yet ask. One
event loop's thread. Invariants: an id in flight is taken for its caller and free for everybody
else; the engine uses the caller's own id for a request unless another caller's request has that id;
no two calls of a caller have reserved the same id.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from tasuki.engine.messages import RequestId
from tasuki.server.auth.caller import Caller, Scope

_Owned = tuple[str, RequestId]
"""The caller's name, and its id for the request."""


class RequestNames:
    def __init__(self, remembered: int = 4096) -> None:
        """remembered: how many ended requests keep their names."""
        self._remembered = remembered
        self._owners: dict[RequestId, _Owned] = {}
        self._names: dict[_Owned, RequestId] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._reserved: set[_Owned] = set()

    @contextmanager
    def reserved(self, caller: Caller, given: RequestId) -> Iterator[RequestId]:
        """Inside, an id that no other call of the caller has, nor a request of it in flight:
        `given` where that is free."""
        if (caller.name, given) in self._reserved or self.is_in_flight(caller, given):
            given = RequestId(uuid4().hex)
        self._reserved.add((caller.name, given))
        try:
            yield given
        finally:
            self._reserved.discard((caller.name, given))

    def is_in_flight(self, caller: Caller, given: RequestId) -> bool:
        """Whether a request of this caller with the id `given` is in flight."""
        name = self._names.get((caller.name, given))
        return name is not None and name not in self._ended

    def take(self, caller: Caller, given: RequestId) -> RequestId:
        """The engine's id for the caller's request. REQUIRES: not is_in_flight."""
        owned = (caller.name, given)
        name = self._names.get(owned) or self._unused(given)
        self._ended.pop(name, None)
        self._owners[name], self._names[owned] = owned, name
        return name

    def end(self, name: RequestId) -> None:
        """The engine has ended the request. Ids that take() did not give are ignored."""
        if name not in self._owners:
            return
        self._ended[name] = None
        self._ended.move_to_end(name)
        if len(self._ended) > self._remembered:
            oldest, _ = self._ended.popitem(last=False)
            del self._names[self._owners.pop(oldest)]

    def find(self, caller: Caller, given: str) -> RequestId | None:
        """The engine's id for the caller's request; None where there is none, also where the id is
        another caller's. Operators may give any id of the engine's."""
        own = self._names.get((caller.name, RequestId(given)))
        if own is None and caller.may(Scope.OPERATOR):
            return RequestId(given)
        return own

    def _unused(self, given: RequestId) -> RequestId:
        if given not in self._owners:
            return given
        others = (RequestId(f"{given}~{number}") for number in itertools.count(2))
        return next(name for name in others if name not in self._owners)

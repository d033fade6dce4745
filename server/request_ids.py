"""Whose request an id names. Each caller has a namespace of its own; the engine has one for all.

Owns the ids in flight and, for as long as ended requests are remembered, theirs. Knows no engine
and no answers. One event loop's thread.
Invariants: an id in flight is taken for its caller and free for everybody else; the engine's id of
a request is the caller's own where no other caller's request has it.
"""

import itertools
from collections import OrderedDict

from tasuki.engine.messages import RequestId
from tasuki.server.auth.caller import Caller, Scope

_Owned = tuple[str, RequestId]
"""The caller's name, and what the caller calls the request."""


class RequestNames:
    def __init__(self, remembered: int = 4096) -> None:
        """remembered: how many ended requests keep their names."""
        self._remembered = remembered
        self._owners: dict[RequestId, _Owned] = {}
        self._names: dict[_Owned, RequestId] = {}
        self._ended: OrderedDict[RequestId, None] = OrderedDict()

    def is_in_flight(self, caller: Caller, given: RequestId) -> bool:
        """One of the caller's own."""
        name = self._names.get((caller.name, given))
        return name is not None and name not in self._ended

    def take(self, caller: Caller, given: RequestId) -> RequestId:
        """What the engine is to call the request. REQUIRES: not is_in_flight."""
        owned = (caller.name, given)
        name = self._names.get(owned) or self._unused(given)
        self._ended.pop(name, None)
        self._owners[name], self._names[owned] = owned, name
        return name

    def end(self, name: RequestId) -> None:
        """The engine has ended the request. Those that this node did not take are nobody's."""
        if name not in self._owners:
            return
        self._ended[name] = None
        self._ended.move_to_end(name)
        if len(self._ended) > self._remembered:
            oldest, _ = self._ended.popitem(last=False)
            del self._names[self._owners.pop(oldest)]

    def find(self, caller: Caller, given: str) -> RequestId | None:
        """What the engine calls the caller's request of that id. To operators every id of the
        engine's is known. None where there is none: also where it is another's."""
        own = self._names.get((caller.name, RequestId(given)))
        if own is None and caller.may(Scope.OPERATOR):
            return RequestId(given)
        return own

    def _unused(self, given: RequestId) -> RequestId:
        if given not in self._owners:
            return given
        others = (RequestId(f"{given}~{number}") for number in itertools.count(2))
        return next(name for name in others if name not in self._owners)

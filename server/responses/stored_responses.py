"""Responses that later ones may go on from: their bodies, and the exact tokens at which they ended.

Owns what is stored, in memory. Any thread. Invariants: a response is found by the caller and tenant
that it was made for, and by nobody else; no key holds more than its count, nor, where there are
several, more than half of the bytes; what is stored takes no more bytes than the capacity, as they
are counted here. The longest unused of whoever holds most goes first, so that nobody crowds out the
others; each is gone after its lifetime.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tasuki.engine.messages import Tokens
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.text.chat_message import ChatMessage

_ENTRY_BYTES = 1000
_MESSAGE_BYTES = 300

_Owner = tuple[str, str | None]


@dataclass(frozen=True)
class StoredTurn:
    """tokens: the prompt and its answer, int32 [T]. messages: the same as a template takes them,
    without instructions. context: a digest of all else that the prompt's text depends on."""

    tokens: Tokens
    messages: tuple[ChatMessage, ...]
    context: bytes


@dataclass(frozen=True)
class StoredResponse:
    """body: JSON."""

    id: str
    body: bytes
    turn: StoredTurn

    @property
    def size(self) -> int:
        """Bytes. Messages count as often as they are stored, though turns share them."""
        texts = sum(
            _MESSAGE_BYTES + len(message.content) + len(message.reasoning or "")
            for message in self.turn.messages
        )
        return _ENTRY_BYTES + len(self.body) + self.turn.tokens.nbytes + texts


@dataclass(frozen=True)
class _Held:
    response: StoredResponse
    owner: _Owner
    size: int
    until: float


class Responses(Protocol):
    """What a call reads and keeps, as of ResponseStore. Any thread, put() the event loop's."""

    def put(self, context: RequestContext, response: StoredResponse) -> None: ...
    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None: ...


class ResponseStore:
    def __init__(
        self, clock: Callable[[], float], capacity: int, per_key: int, seconds: float
    ) -> None:
        """clock: seconds, monotone. capacity: bytes. per_key: responses of one key; 0: no such
        cap. seconds: of a response's life."""
        self._clock = clock
        self._capacity = capacity
        self._per_key = per_key
        self._seconds = seconds
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        # By owner, the longest unused first.
        self._of: dict[_Owner, OrderedDict[str, int]] = {}
        self._bytes: dict[_Owner, int] = {}
        self._ends: deque[tuple[float, str]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def used(self) -> int:
        """Bytes."""
        return sum(self._bytes.values())

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        """What alone is over a bound is not stored."""
        owner, size = _owner(context), response.size
        one_of_many = context.caller.is_one_of_many
        most = self._capacity // 2 if one_of_many else self._capacity
        if size > most:
            return
        until = self._clock() + self._seconds
        with self._lock:
            self._drop_ended()
            self._held[response.id] = _Held(response, owner, size, until)
            self._of.setdefault(owner, OrderedDict())[response.id] = size
            self._bytes[owner] = self._bytes.get(owner, 0) + size
            self._ends.append((until, response.id))
            while self._bytes[owner] > most or 0 < self._per_key < len(self._of[owner]):
                self._drop_oldest(owner)
            while self.used > self._capacity:
                self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        with self._lock:
            self._drop_ended()
            held = self._found(context, response_id)
            if held is None:
                return None
            self._of[held.owner].move_to_end(response_id)
            return held.response

    def delete(self, context: RequestContext, response_id: str) -> bool:
        """Whether there was one."""
        with self._lock:
            self._drop_ended()
            held = self._found(context, response_id)
            if held is not None:
                self._drop(response_id)
            return held is not None

    def _found(self, context: RequestContext, response_id: str) -> _Held | None:
        held = self._held.get(response_id)
        return held if held is not None and held.owner == _owner(context) else None

    def _drop_oldest(self, owner: _Owner) -> None:
        self._drop(next(iter(self._of[owner])))

    def _drop(self, response_id: str) -> None:
        held = self._held.pop(response_id)
        del self._of[held.owner][response_id]
        self._bytes[held.owner] -= held.size
        if not self._of[held.owner]:
            del self._of[held.owner], self._bytes[held.owner]

    def _drop_ended(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, response_id = self._ends.popleft()
            if response_id in self._held:
                self._drop(response_id)


def _owner(context: RequestContext) -> _Owner:
    return context.caller.name, context.tenant

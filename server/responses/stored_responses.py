"""Responses that later ones may go on from: their bodies, and the exact tokens at which they ended.

Owns what is stored, in memory. Any thread. Invariants: a response is found by the caller and tenant
that it was made for, and by no other caller; no key holds more than its count, nor, where there are
several, more than half of the bytes; all responses together take no more memory than the capacity,
since each is a few blocks of bytes and its size counts them all. The longest unused response of the
owner with the most bytes goes first, so that no owner crowds out the others; each response is gone
after its lifetime.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tasuki.engine.messages import Tokens
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.text.chat_message import ChatMessage

from .stored_messages import read_messages, written_messages

_ENTRY_BYTES = 1500
"""Of a response's objects, and of its places in the store's tables."""

NO_CONTEXT = b""
"""No digest is: nothing goes on from such a turn's tokens."""

_Owner = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """tokens: the prompt and its answer, int32 [T]. conversation: the same as a template takes it,
    without instructions, as stored_messages.py writes it. context: a digest of all else that the
    prompt's text depends on."""

    tokens: Tokens
    conversation: bytes
    context: bytes

    @staticmethod
    def of(tokens: Tokens, messages: Sequence[ChatMessage], context: bytes) -> "StoredTurn":
        """Return the turn of a conversation."""
        return StoredTurn(tokens, written_messages(messages), context)

    @property
    def size(self) -> int:
        """Bytes of memory, but for a few objects."""
        return len(self.conversation) + len(self.context) + self.tokens.nbytes

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return the conversation, read anew by each call."""
        return read_messages(self.conversation)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """body: JSON."""

    id: str
    body: bytes
    turn: StoredTurn

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return _ENTRY_BYTES + len(self.body) + self.turn.size


class StoredValue(Protocol):
    """Immutable. size: bytes of memory, the entry's among them."""

    @property
    def id(self) -> str: ...
    @property
    def size(self) -> int: ...


class StoredValues(Protocol):
    """As of ResponseStore, whose bounds are those of all values."""

    def put(self, context: RequestContext, value: StoredValue) -> bool: ...
    def find(self, context: RequestContext, name: str) -> StoredValue | None: ...
    def delete(self, context: RequestContext, response_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Held:
    value: StoredValue
    owner: _Owner
    size: int
    until: float


Keep = Callable[[RequestContext, StoredResponse], object]
"""Takes a response at its end."""


class Responses(Protocol):
    """What a call reads and keeps, as of ResponseStore. Any thread, put() the event loop's.

    unstored: what else keeps each response, also one that is not to be stored; None: nothing.
    values: what is stored beside responses; None: another process has it."""

    @property
    def unstored(self) -> Keep | None: ...
    @property
    def values(self) -> StoredValues | None: ...
    def put(self, context: RequestContext, response: StoredResponse) -> object: ...
    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None: ...


class ResponseStore:
    unstored: Keep | None = None

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
        # In the order of their ends, since all live equally long.
        self._held: OrderedDict[str, _Held] = OrderedDict()
        # By owner, the longest unused first.
        self._of: dict[_Owner, OrderedDict[str, int]] = {}
        self._bytes: dict[_Owner, int] = {}
        self._owners: dict[_Owner, _Owner] = {}
        """Each owner once, however many responses it has."""
        self._used = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def values(self) -> StoredValues:
        return self

    @property
    def used(self) -> int:
        """Bytes of all responses."""
        return self._used

    def put(self, context: RequestContext, value: StoredValue) -> bool:
        """Store the value in place of the one of its id, unless it alone exceeds a bound. Return
        whether it was stored."""
        owner, size = _owner(context), value.size
        one_of_many = context.caller.is_one_of_many
        most = self._capacity // 2 if one_of_many else self._capacity
        if size > most:
            return False
        until = self._clock() + self._seconds
        with self._lock:
            self._drop_ended()
            if value.id in self._held:
                self._drop(value.id)
            owner = self._owners.setdefault(owner, owner)
            self._held[value.id] = _Held(value, owner, size, until)
            self._of.setdefault(owner, OrderedDict())[value.id] = size
            self._bytes[owner] = self._bytes.get(owner, 0) + size
            self._used += size
            while self._bytes[owner] > most or 0 < self._per_key < len(self._of[owner]):
                self._drop_oldest(owner)
            while self._used > self._capacity:
                self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))
            return value.id in self._held

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        """Return the caller's response of that id; None where there is none."""
        found = self.find(context, response_id)
        return found if isinstance(found, StoredResponse) else None

    def find(self, context: RequestContext, name: str) -> StoredValue | None:
        """Return the caller's value of that id, of any kind; None: there is none."""
        with self._lock:
            self._drop_ended()
            held = self._found(context, name)
            if held is None:
                return None
            self._of[held.owner].move_to_end(name)
            return held.value

    def delete(self, context: RequestContext, response_id: str) -> bool:
        """Drop the caller's response of that id, and return whether there was one."""
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
        self._used -= held.size
        if not self._of[held.owner]:
            del self._of[held.owner], self._bytes[held.owner], self._owners[held.owner]

    def _drop_ended(self) -> None:
        now = self._clock()
        while self._held:
            response_id, held = next(iter(self._held.items()))
            if held.until > now:
                return
            self._drop(response_id)


def _owner(context: RequestContext) -> _Owner:
    return context.caller.name, context.tenant

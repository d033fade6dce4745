"""Stored responses: their JSON bodies, and their exact tokens, for responses continuing them.

ResponseStore owns the stored responses, in memory. Any thread. Invariants:
- Only the caller and tenant of a response find it.
- No key holds more responses than its limit. If there are several keys, none holds more than half
  of the bytes.
- All responses together take at most the capacity in bytes. Each is a few blocks of bytes, and
  its size counts them all.
- If all responses together exceed the capacity, the owner with the most bytes loses its least
  recently used one, so no owner crowds out the others.
- Each response is dropped after its lifetime.

Messages: a conversation as JSON bytes. They take a little more memory than the text; Python objects
take up to fifty times as much. Pure functions; any thread. Invariant: reading returns the written
values, also for lone surrogates, integers of any length and NaN. msgspec would not keep these.

StoredItems: items of stored responses, for requests with an item's id in place of the item. An
item's id contains its response's id and its index there, so no table of items is needed. Any
thread; one request.

TurnRecord: the turn of a response in progress: its tokens, and the message of its answer. One
answer, one thread. Invariant: it consists of bytes and arrays, with a few bytes for each token.
"""

import json
import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.pictures.kept_pictures import NO_PICTURES, TurnPictures
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.json_reading import read_arguments
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    GrowingText,
    Reasoning,
)
from tasuki.utils.signatures import Clock

_ENTRY_BYTES = 1500
"""Bytes of memory for a response's objects and its entries in the store's tables."""

NO_CONTEXT = b""
"""Value of `StoredTurn.context` for a turn with tokens not to be continued: it equals no digest."""

_Owner = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """The exact tokens of a response's turn, and its messages. tokens: the prompt and its answer,
    int32 [T]. conversation: all messages without the instructions, encoded by written_messages().
    context: digest of the prompt's other inputs (instructions, tools, template variables).
    pictures: those of all messages."""

    tokens: Tokens
    conversation: bytes
    context: bytes
    pictures: TurnPictures = NO_PICTURES

    @staticmethod
    def of(tokens: Tokens, messages: Sequence[ChatMessage], context: bytes) -> "StoredTurn":
        """Return a turn with these tokens and messages. context: digest of the prompt's other
        inputs."""
        return StoredTurn(tokens, written_messages(messages), context)

    @property
    def size(self) -> int:
        """Return the memory of the turn in bytes, a few objects not counted."""
        own = len(self.conversation) + len(self.context) + self.tokens.nbytes
        return own + self.pictures.size

    def messages(self) -> tuple[ChatMessage, ...]:
        """Return all messages of the turn, answer included. Each call decodes them anew."""
        return read_messages(self.conversation)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response kept for later requests. body: the response as JSON."""

    id: str
    body: bytes
    turn: StoredTurn

    @property
    def size(self) -> int:
        """Return the memory of the response in bytes."""
        return _ENTRY_BYTES + len(self.body) + self.turn.size

    @property
    def picture_bytes(self) -> int:
        return self.turn.pictures.size


class StoredValue(Protocol):
    """An immutable value of the store: a response or a conversation. size: its memory in bytes,
    with its entry in the store. picture_bytes: those of its pictures."""

    @property
    def id(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def picture_bytes(self) -> int: ...


class StoredValues(Protocol):
    """Interface of a ResponseStore for values of any kind. Its limits hold for all kinds
    together."""

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
"""Function to store or keep a response at its end, for the caller in the context."""

Store = Callable[[StoredResponse], object]
"""Function to store a response at its end. Its caller is already bound."""


class Responses(Protocol):
    """Interface of the stored responses for reading a request. Methods are those of ResponseStore.
    Any thread; put() only on the event loop's thread.

    unstored: function for a response not to be stored; None: such a response is dropped. values:
    stored values of all kinds; None: another process has them.
    """

    @property
    def unstored(self) -> Keep | None: ...
    @property
    def values(self) -> StoredValues | None: ...
    def put(self, context: RequestContext, response: StoredResponse) -> object: ...
    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None: ...


class ResponseStore:
    unstored: Keep | None = None

    def __init__(self, clock: Clock, capacity: int, per_key: int, seconds: float) -> None:
        """clock: function to a monotonic time in seconds. capacity: limit of all stored values in
        bytes. per_key: largest number of values of one caller and tenant; 0: no limit. seconds:
        lifetime of a value."""
        self._clock = clock
        self._capacity = capacity
        self._per_key = per_key
        self._seconds = seconds
        self._lock = threading.Lock()
        # In the order of their expiry, because all have the same lifetime.
        self._held: OrderedDict[str, _Held] = OrderedDict()
        # By owner, the least recently used first.
        self._of: dict[_Owner, OrderedDict[str, int]] = {}
        self._bytes: dict[_Owner, int] = {}
        self._owners: dict[_Owner, _Owner] = {}
        """One object for each owner, shared by the entries of its responses, to save memory."""
        self._used = 0
        self._pictures = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def values(self) -> StoredValues:
        return self

    @property
    def picture_bytes(self) -> int:
        """Return the bytes of picture files of all stored values. Those of several turns of a
        conversation count for each."""
        return self._pictures

    @property
    def used(self) -> int:
        """Return the memory of all stored values in bytes."""
        return self._used

    def put(self, context: RequestContext, value: StoredValue) -> bool:
        """Store the value for the caller, in place of one with the same id. Drop older values
        beyond the limits. Return True if it is stored, False if it alone exceeds a limit."""
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
            self._pictures += value.picture_bytes
            while self._bytes[owner] > most or 0 < self._per_key < len(self._of[owner]):
                self._drop_oldest(owner)
            while self._used > self._capacity:
                self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))
            return value.id in self._held

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        """Return the response stored for the caller with this id; None if there is none."""
        found = self.find(context, response_id)
        return found if isinstance(found, StoredResponse) else None

    def find(self, context: RequestContext, name: str) -> StoredValue | None:
        """Return the response or conversation stored for the caller with this id, and mark it as
        used. Return None if there is none."""
        with self._lock:
            self._drop_ended()
            held = self._found(context, name)
            if held is None:
                return None
            self._of[held.owner].move_to_end(name)
            return held.value

    def delete(self, context: RequestContext, response_id: str) -> bool:
        """Drop the response or conversation stored for the caller with this id. Return True if
        there was one."""
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
        self._pictures -= held.value.picture_bytes
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


_RESPONSE = "resp_"
_NAME = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")


def item_id(kind: str, response_id: str, place: int) -> str:
    """Return the id of an output item. kind: prefix of the id, such as msg, rs, fc or ctc. place:
    index of the item in the response's output."""
    return f"{kind}_{response_id.removeprefix(_RESPONSE)}_{place}"


class StoredItems:
    def __init__(self, store: Responses, context: RequestContext) -> None:
        """store: the stored responses. context: caller and tenant of the responses."""
        self._store = store
        self._context = context
        self._of: dict[str, dict[str, dict[str, Any]]] = {}

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the output item with this id as JSON; None if no response stored for the caller
        has it."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        response_id = _RESPONSE + found[1]
        if response_id not in self._of:
            self._of[response_id] = self._items(response_id)
        return self._of[response_id].get(name)

    def _items(self, response_id: str) -> dict[str, dict[str, Any]]:
        response = self._store.get(self._context, response_id)
        if response is None:
            return {}
        return {item["id"]: item for item in msgspec.json.decode(response.body)["output"]}


class TurnRecord:
    def __init__(
        self,
        prompt: Tokens,
        messages: Sequence[ChatMessage],
        context: bytes,
        pictures: TurnPictures = NO_PICTURES,
    ) -> None:
        """prompt: token ids of the prompt. messages: conversation before the answer. context:
        digest of the prompt's other inputs, as in StoredTurn. pictures: those of the messages."""
        self._prompt = prompt
        self._pictures = pictures
        self._before = written_messages(messages)
        self._context = context
        self._tokens = array("i")
        self._reasoning = GrowingText()
        self._content = GrowingText()
        self._names: list[str] = []
        self._arguments: list[GrowingText] = []

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of memory for the messages before the answer. The prompt's tokens and
        pictures are not counted."""
        return len(self._before)

    def add_token(self, token: int) -> None:
        self._tokens.append(token)

    def add(self, item: AnswerItem) -> None:
        """Add the next parsed part of the answer: reasoning, content or a piece of a tool call."""
        match item:
            case Reasoning(text):
                self._reasoning.add(text)
            case Content(text):
                self._content.add(text)
            case CallBegin(_, _, name):
                self._names.append(name)
                self._arguments.append(GrowingText())
            case CallArguments(number, text):
                self._arguments[number].add(text)
            case CallEnd():
                pass

    def turn(self) -> StoredTurn:
        """Return the turn with the prompt and the answer. REQUIRES: the answer has ended."""
        calls = [*zip(self._names, map(str, self._arguments), strict=True)]
        # An answer without text is a message too.
        answer = written_answer(str(self._content), str(self._reasoning), calls)
        tokens = np.concatenate([self._prompt, np.array(self._tokens, dtype=np.int32)])
        conversation = joined_messages(self._before, answer)
        return StoredTurn(tokens, conversation, self._context, self._pictures)

    def unanswered(self) -> StoredTurn:
        """Return the turn of a response without an answer. Its tokens are not continued: a later
        request renders all messages anew."""
        return StoredTurn(self._prompt, self._before, NO_CONTEXT, self._pictures)


NO_MESSAGES = b"[]"


def written_messages(messages: Iterable[ChatMessage]) -> bytes:
    """Return the messages encoded as one JSON list, without the places of pictures."""
    listed = [
        (
            message.role,
            message.content,
            message.reasoning,
            [(call.name, call.arguments) for call in message.tool_calls],
            # Texts are stored as before pictures were served.
            *([message.pictures] if message.pictures else []),
        )
        for message in messages
    ]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def written_answer(content: str, reasoning: str, calls: Sequence[tuple[str, str]]) -> bytes:
    """Return an assistant's message encoded like written_messages(), as a list of one. calls: pairs
    of a function's name and its arguments as JSON text. The arguments are parsed only when the
    message is read, because parsing may be slow."""
    text = json.dumps([("assistant", content, reasoning, calls)], ensure_ascii=False)
    return text.encode(errors="surrogatepass")


def joined_messages(first: bytes, second: bytes) -> bytes:
    """Return one JSON list with the messages of two encoded lists. REQUIRES: written_messages() or
    written_answer() made both."""
    if NO_MESSAGES in (first, second):
        return second if first == NO_MESSAGES else first
    return b"%b,%b" % (first[:-1], second[1:])


def read_messages(written: bytes) -> tuple[ChatMessage, ...]:
    """Return the messages of a list encoded by written_messages() or written_answer(), also
    joined."""
    listed: list[list[Any]] = json.loads(written.decode(errors="surrogatepass"))
    return tuple(
        ChatMessage(
            role, content, tuple(_call(*call) for call in calls), reasoning, tuple(*pictures)
        )
        for role, content, reasoning, calls, *pictures in listed
    )


def _call(name: str, arguments: Any) -> ToolCall:
    """Return a tool call. arguments: an object, or a model's text with the object."""
    return ToolCall(name, read_arguments(arguments) if isinstance(arguments, str) else arguments)

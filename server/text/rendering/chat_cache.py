"""Caches for rendered conversations: token ids of pieces of text, and digests of rendered prefixes.

EncodedPieces encodes the pieces of rendered text between special tokens, and caches their token
ids. It owns the cache. Thread rule: any thread. Invariants: the key of cached tokens is their exact
text and the caller's salt. The result therefore equals a fresh encoding, whatever template, tools
or messages the piece came from. If a conversation grows, forks or changes in its middle, only its
new text is encoded. Timing reveals nothing about texts sent under another salt.

ConversationParts caches whether the first N messages, rendered alone, begin another rendered text.
Invariants: the key of a part covers everything its text depends on, and the salt, so no caller
profits from another's conversations. Only the length and a digest of a text are kept.
"""

import hashlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.engine.messages import Tokens
from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError
from tasuki.server.text.tokenizer import Tokenizer, TooManyTokens
from tasuki.utils.bounded_cache import BoundedCache
from tasuki.utils.signatures import Work

from .compiled_template import MessagePlaces

# Number of characters encoded at once, within a few milliseconds.
_BATCH_CHARACTERS = 1 << 16


class EncodedPieces:
    """An encoder of pieces of text with a cache. encoded: number of tokens returned so far and
    encoded anew. remembered: number of tokens returned from the cache."""

    def __init__(self, tokenizer: Tokenizer, capacity: int) -> None:
        """capacity: largest size of the cached texts and tokens in bytes."""
        self._tokenizer = tokenizer
        self._cache: BoundedCache[tuple[bytes, str], Tokens] = BoundedCache(capacity)
        # One client's text must not evict all other texts.
        self._largest = capacity // 16
        self._lock = threading.Lock()
        self.encoded = self.remembered = 0

    @property
    def used(self) -> int:
        """Return the used bytes of the cache."""
        return self._cache.used

    def tokens(self, salt: bytes, pieces: Sequence[str], most: int | None) -> dict[str, Tokens]:
        """Return the token ids of each piece, int32 [T], read-only. salt: cache salt of the caller.
        most: allowed number of tokens of all pieces together; None: no limit. Raises TooManyTokens
        above it."""
        found: dict[str, Tokens] = {}
        missing = []
        for piece in dict.fromkeys(pieces):
            known = self._cache.get((salt, piece))
            if known is None:
                missing.append(piece)
            else:
                found[piece] = known
        count = sum(map(len, found.values()))
        for batch in _batches(missing):
            made = self._tokenizer.encode_all(batch, most, count)
            for piece, tokens in zip(batch, made, strict=True):
                tokens.setflags(write=False)
                found[piece] = tokens
                count += len(tokens)
        _check(sum(len(found[piece]) for piece in pieces), most)
        self._remember(salt, missing, found)
        return found

    def _remember(self, salt: bytes, missing: Sequence[str], found: Mapping[str, Tokens]) -> None:
        for piece in missing:
            tokens = found[piece]
            size = sys.getsizeof(piece) + tokens.nbytes
            if size <= self._largest:
                self._cache.put((salt, piece), tokens, size)
        encoded = sum(len(found[piece]) for piece in missing)
        with self._lock:
            self.encoded += encoded
            self.remembered += sum(map(len, found.values())) - encoded


def _batches(pieces: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _check(tokens: int, most: int | None) -> None:
    if most is not None and tokens > most:
        raise TooManyTokens(tokens)


PARTS_BYTES = 4 << 20
"""Size of the cache in bytes: room for some ten thousand parts. A turn of a long conversation adds
two or three."""


@dataclass(frozen=True)
class Part:
    """The rendered text of a conversation's first messages, as its length and digest. length: in
    characters. Immutable; any thread."""

    length: int
    digest: bytes

    def begins(self, text: str) -> bool:
        return len(text) >= self.length and self.digest == _digest(text[: self.length])


# Last bytes of the name of a part rendered with an answer's opening.
_ASKED = b"asked"
# A part rejected by the template: no text has its digest.
_REFUSED = Part(0, b"")


class ConversationParts:
    """The cached parts (renderings of the first N messages) of one conversation. One thread."""

    def __init__(
        self,
        remembered: "BoundedCache[bytes, Part]",
        salt: bytes,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> None:
        """remembered: cached parts of all conversations. salt, messages, tools: inputs of this
        conversation. variables: the request's template variables; a template may read them
        anywhere. REQUIRES: `remembered` is used for one template only."""
        self._remembered = remembered
        self._messages = messages
        self._rolling = hashlib.blake2b(
            repr((salt, tools, variables)).encode(errors="surrogatepass"), digest_size=16
        )
        # By number of messages.
        self._names = [self._rolling.digest()]

    def begins(self, count: int, text: str, render: Work[str]) -> int | None:
        """Return the length in characters of the first `count` messages rendered alone, if `text`
        begins with this rendering. Return None otherwise, or if the template rejects these
        messages. render: function to render them if they are not cached; it may raise
        ChatTemplateError."""
        part = self._remembered.get(self._name(count))
        if part is None:
            try:
                part = self.remember(count, render())
            except ChatTemplateError:
                part = self._put(count, _REFUSED)
        return part.length if part.begins(text) else None

    def remember(self, count: int, text: str) -> Part:
        """Cache the rendering of the first `count` messages alone. text: the rendering."""
        return self._put(count, Part(len(text), _digest(text)))

    def remember_asked(self, text: str) -> None:
        """Cache the rendering of all messages followed by an answer's opening: a request's prompt.
        text: the rendering."""
        name = self._name(len(self._messages)) + _ASKED
        part = Part(len(text), _digest(text))
        self._remembered.put(name, part, len(name) + len(part.digest))

    def was_changed(
        self, answered: int, answer: Mapping[str, Any], text: str, places: MessagePlaces
    ) -> bool:
        """Return True if `text`, the rendering of this conversation, changes the previous turn. The
        previous turn is the prompt of the first `answered` messages, and the answer. It is changed
        if `text` does not begin with this prompt, or lacks the answer's reasoning. Return False if
        the prompt is not cached, or the answer's end is unknown. answer: the answer's message, as
        given to the template. places: positions of the messages in `text`."""
        asked = self._remembered.get(self._name(answered) + _ASKED)
        end = places.ends.get(answered + 1)
        if asked is None or end is None:
            return False
        thought = answer.get("reasoning_content", "").strip()
        begin = places.ends.get(answered, 0)
        return not asked.begins(text) or thought not in text[begin:end]

    def _put(self, count: int, part: Part) -> Part:
        name = self._name(count)
        self._remembered.put(name, part, len(name) + len(part.digest))
        return part

    def _name(self, count: int) -> bytes:
        for message in self._messages[len(self._names) - 1 : count]:
            value = (message.role, message.content, message.tool_calls, message.reasoning)
            self._rolling.update(repr(value).encode())
            if message.pictures:
                self._rolling.update(repr(message.pictures).encode())
            self._names.append(self._rolling.digest())
        return self._names[count]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

"""Encodes the pieces of rendered conversations that stand between special tokens, and remembers
their tokens.

Owns what is remembered. Thread rule: any thread. Invariants: tokens are remembered by the very text
that they are of and by the caller's salt, so that an answer is what encoding would give, whatever
template, tools or messages the piece came from; a conversation that grows, forks or changes in its
middle is encoded as far as it is new; and nobody learns by time what another salt's callers sent.
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from tasuki.engine.messages import Tokens
from tasuki.utils.bounded_cache import BoundedCache

from .tokenizer import Tokenizer, TooManyTokens

# Encoded at once: a few milliseconds.
_BATCH_CHARACTERS = 1 << 16


class EncodedPieces:
    """encoded, remembered: tokens given out so far, by whether they were encoded for it."""

    def __init__(self, tokenizer: Tokenizer, capacity: int) -> None:
        """capacity: bytes of texts and tokens to remember."""
        self._tokenizer = tokenizer
        self._cache: BoundedCache[tuple[bytes, str], Tokens] = BoundedCache(capacity)
        # One text of a client does not drive out all others'.
        self._largest = capacity // 16
        self._lock = threading.Lock()
        self.encoded = self.remembered = 0

    @property
    def used(self) -> int:
        """Bytes."""
        return self._cache.used

    def tokens(self, salt: bytes, pieces: Sequence[str], most: int | None) -> dict[str, Tokens]:
        """The tokens of each piece, int32 [T], not to be written. most: tokens of all pieces that
        are worth making; more raise TooManyTokens."""
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

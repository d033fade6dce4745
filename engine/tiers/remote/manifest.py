"""What a state in a remote store is, and by which names a prompt finds it.

A manifest names the objects with the state and with all KV of its path, and holds their digests and
the tokens themselves: whoever reads it compares those, and believes no name. It is written last, so
that what it names is there. Pure.

States are found by listing the folder of a first part of the prompt: the longest of LEAST_TOKENS
times a power of two that a state's tokens have. So a folder holds states that have half of their
tokens in common, and a prompt has a folder to look into for each such power.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tasuki.pycache.layout import PAGE_TOKENS

Tokens = NDArray[np.int32]
LEAST_TOKENS = 256
"""A state behind fewer is computed sooner than it is asked for."""
MOST_BYTES = 64 << 20
"""Of a manifest: more than any prompt's."""
_MAGIC = b"tasukiR1"
_DIGEST_BYTES = 16
_FOLDER = "at"
_KEY_DIGITS, _COUNT_DIGITS = 32, 9


class Pages(msgspec.Struct, frozen=True, array_like=True):
    """So many pages of an object, from one on."""

    name: str
    first: int
    count: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """tokens: little-endian int32. digests: 16 bytes a page, in the order of the prompt. slot: the
    object with the state."""

    salt: bytes
    tokens: bytes
    kind: str
    pages: tuple[Pages, ...]
    digests: bytes
    slot: str
    slot_digest: bytes

    @property
    def prompt(self) -> Tokens:
        return np.frombuffer(self.tokens, "<i4").astype(np.int32)

    @property
    def page_digests(self) -> list[int]:
        found = self.digests
        return [
            int.from_bytes(found[at : at + _DIGEST_BYTES], "big")
            for at in range(0, len(found), _DIGEST_BYTES)
        ]

    @property
    def places(self) -> list[tuple[str, int]]:
        """Of each page: its object, and which one of that."""
        return [(part.name, part.first + at) for part in self.pages for at in range(part.count)]

    @property
    def is_whole(self) -> bool:
        tokens = len(self.tokens) // 4
        count = -(-tokens // PAGE_TOKENS)
        return (
            tokens >= LEAST_TOKENS
            and len(self.tokens) % 4 == 0
            and all(part.first >= 0 and part.count > 0 for part in self.pages)
            and sum(part.count for part in self.pages) == count
            and len(self.digests) == count * _DIGEST_BYTES
            and len(self.slot_digest) == _DIGEST_BYTES
        )


_DECODER = msgspec.msgpack.Decoder(Manifest)


def encoded(manifest: Manifest) -> bytes:
    body = msgspec.msgpack.encode(manifest)
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def decoded(content: bytes) -> Manifest | None:
    """None: it is no whole manifest."""
    head = len(_MAGIC) + _DIGEST_BYTES
    body = content[head:]
    if content[:head] != _MAGIC + xxhash.xxh3_128_digest(body):
        return None
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None
    return found if found.is_whole else None


def runs_of(places: Iterable[tuple[str, int]]) -> tuple[Pages, ...]:
    """As few as may be. places: as of Manifest.places."""
    found: list[Pages] = []
    for name, at in places:
        last = found[-1] if found else None
        if last is not None and last.name == name and last.first + last.count == at:
            found[-1] = Pages(name, last.first, last.count + 1)
        else:
            found.append(Pages(name, at, 1))
    return tuple(found)


def digest_bytes(digests: Iterable[int]) -> bytes:
    return b"".join(each.to_bytes(_DIGEST_BYTES, "big") for each in digests)


class Keys:
    """Of the first tokens of a prompt."""

    def __init__(self, salt: bytes, tokens: Tokens) -> None:
        self._salt = len(salt).to_bytes(8, "little") + salt
        self._tokens = tokens.astype("<i4")

    def __len__(self) -> int:
        return len(self._tokens)

    def of(self, counts: Sequence[int]) -> list[str]:
        """By how many tokens, ascending."""
        total, done, found = hashlib.sha256(self._salt), 0, []
        for count in counts:
            total.update(self._tokens[done:count].tobytes())
            done = count
            found.append(total.copy().hexdigest()[:_KEY_DIGITS])
        return found

    def folders(self) -> list[str]:
        """Where states of a beginning may be, those of the longest first."""
        counts = list(_levels(len(self)))
        return [f"{_FOLDER}/{key}" for key in reversed(self.of(counts))]

    def matching(self, names: Iterable[str], beyond: int) -> str | None:
        """Of these names of states, the longest beginning of this prompt that is shorter than it;
        None: none is longer than `beyond` tokens."""
        parsed = [(found, name) for name in names if (found := _parsed(name)) is not None]
        asked = sorted({count for (count, _), _ in parsed if beyond < count < len(self)})
        keys = dict(zip(asked, self.of(asked), strict=True))
        fits = [(count, name) for (count, key), name in parsed if keys.get(count) == key]
        return max(fits)[1] if fits else None


def name_of(salt: bytes, tokens: Tokens) -> str:
    """Of the state behind these. REQUIRES: LEAST_TOKENS at least."""
    *_, level = _levels(len(tokens))
    folder, key = Keys(salt, tokens).of([level, len(tokens)])
    return f"{_FOLDER}/{folder}/{len(tokens)}-{key}"


def _levels(tokens: int) -> Iterator[int]:
    level = LEAST_TOKENS
    while level <= tokens:
        yield level
        level *= 2


def _parsed(name: str) -> tuple[int, str] | None:
    """Tokens and key."""
    count, _, key = name.rpartition("/")[2].partition("-")
    is_one = count.isdecimal() and len(count) <= _COUNT_DIGITS and len(key) == _KEY_DIGITS
    return (int(count), key) if is_one else None

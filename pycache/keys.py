"""Keys of prompts: the numbers by which prefixes are compared.

A prompt has two arrays of one length, int32. Its tokens go to embeddings, penalties, drafters,
detokenisers and echoes. Its keys go to the tree, events, prefix hashes, peers and hit accounting.
The arrays differ at pictures only. For a prompt without pictures both are the same object.

A picture is one image or one pair of video frames. Its placeholders have negative keys, made from
the picture's digest. No vocabulary has a negative id, so a key among tokens fails immediately. The
token that opens a picture is keyed too. A page that ends right behind the first placeholder then
compares 62 bits of the picture instead of 31. An opening token alone in its page may collide: its
keys and values depend on nothing of the picture.

The digest covers encoded bytes and target size, so a prompt is named without decoding. All
functions are pure.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np
from numpy.typing import NDArray

Keys = NewType("Keys", NDArray[np.int32])
"""Keys of a prompt, [n] int32: negative inside pictures and at their opening tokens."""

PromptTokens = NewType("PromptTokens", NDArray[np.int32])
"""Tokens of a prompt, [n] int32: ids of the vocabulary."""

PictureDigest = NewType("PictureDigest", bytes)
"""Name of a picture's content and size: 32 bytes."""

DIGEST_BYTES = 32
SCHEME = b"tasuki picture v1"
"""Name of the rule for keys. Nodes with equal names make equal keys."""
_KEYS_A_CALL = 16
_SIGN = np.int32(-(2**31))


@dataclass(frozen=True)
class PictureSource:
    """All that decides a picture's rows, besides weights.

    kind: image or video. orientation: the rule that turns its pixels. media: SHA-256 of the encoded
    bytes, one of an image and two of a pair of frames. height, width: pixels after the resize.
    constants: the processor's settings, as PixelRules.constants.
    """

    kind: str
    orientation: str
    media: tuple[bytes, ...]
    height: int
    width: int
    constants: str

    @property
    def digest(self) -> PictureDigest:
        """Return the picture's digest. Framed fields give no two records the same bytes."""
        fields = (
            SCHEME,
            self.kind.encode(),
            self.orientation.encode(),
            b"".join(struct.pack("<I", len(name)) + name for name in self.media),
            struct.pack("<II", self.height, self.width),
            self.constants.encode(),
        )
        record = b"".join(struct.pack("<I", len(field)) + field for field in fields)
        return PictureDigest(hashlib.blake2b(record, digest_size=DIGEST_BYTES).digest())


KeySource = Callable[[PictureDigest, int], NDArray[np.int32]]
"""Return the first `count` keys of a picture's digest, [count] int32, all negative."""


def picture_keys(digest: PictureDigest, count: int) -> NDArray[np.int32]:
    """Return the first `count` keys of a picture, [count] int32. Each is minus one minus 31 bits of
    BLAKE2b over digest and counter. Key 0 belongs to the opening token, key 1 to the first
    placeholder."""
    calls = -(-count // _KEYS_A_CALL)
    begun = hashlib.blake2b(digest)
    blocks = []
    for call in range(calls):
        block = begun.copy()
        block.update(struct.pack("<I", call))
        blocks.append(block.digest())
    found = np.frombuffer(b"".join(blocks), dtype="<i4")[:count].astype(np.int32)
    # A number with the sign bit set is minus one minus its other bits, inverted.
    return found | _SIGN


@dataclass(frozen=True)
class KeyedRun:
    """A picture's place in a prompt. start: index of its first placeholder, 1 or more; tokens: its
    placeholders."""

    start: int
    tokens: int
    digest: PictureDigest

    @property
    def end(self) -> int:
        """Return the index behind its last placeholder."""
        return self.start + self.tokens


def prompt_keys(
    tokens: PromptTokens, runs: Sequence[KeyedRun], source: KeySource = picture_keys
) -> Keys:
    """Return a prompt's keys: the tokens themselves, the same array, if it has no pictures. source:
    makes the keys of a digest. REQUIRES: runs are inside the prompt, without an overlap, each
    behind an opening token of its own."""
    if not runs:
        return Keys(tokens)
    keys = tokens.copy()
    for run in runs:
        keys[run.start - 1 : run.end] = source(run.digest, run.tokens + 1)
    return Keys(keys)


def first_keys(keys: Keys, count: int) -> Keys:
    """Return the first `count` keys, a view."""
    return Keys(keys[:count])


def repeat_last(keys: Keys) -> Keys:
    """Return the keys with one more, equal to the last: a match ends before a prompt's last key."""
    return Keys(np.append(keys, keys[-1:]))


def has_pictures(keys: Keys) -> bool:
    """Return True if a picture's key is among the keys."""
    return len(keys) > 0 and int(keys.min()) < 0


def same_tokens(keys: Keys) -> PromptTokens:
    """Return the tokens of keys without pictures, the same array. Raises ValueError for keys with
    pictures: their tokens do not follow from them."""
    if has_pictures(keys):
        raise ValueError("keys with pictures have no tokens; send the pictures' places too")
    return PromptTokens(keys)

"""The bytes of every token, for byte-level tokenizers in Hugging Face layout.

Pure values. It does not encode text (server/text/tokenizer.py does).

UnfinishedTokens: the tokens with bytes ending inside a UTF-8 character.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_LACKING = 3
"""Largest number of bytes lacking in an unfinished UTF-8 character. A character has up to four
bytes."""


class UnfinishedTokens:
    def __init__(self, vocab: int, lacking: Mapping[int, int]) -> None:
        """vocab: number of tokens in the vocabulary. lacking: number of bytes (1 to 3) missing from
        the last character of a token, by token id. Tokens with a complete last character are
        absent."""
        self._finished = []
        for count in range(MOST_LACKING):
            bits = np.ones(-(-vocab // 32) * 32, dtype=np.bool_)
            bits[[token for token, lacks in lacking.items() if lacks > count]] = False
            self._finished.append(np.packbits(bits, bitorder="little").view(np.int32))

    @staticmethod
    def of(tokens: Sequence[bytes]) -> "UnfinishedTokens":
        """Return the tokens ending inside a UTF-8 character. tokens: bytes of each, by id."""
        found = {token: _lacking(text) for token, text in enumerate(tokens) if text[-1:] >= b"\x80"}
        lacking = {token: lacks for token, lacks in found.items() if lacks}
        return UnfinishedTokens(len(tokens), lacking)

    def finished_by(self, count: int) -> NDArray[np.int32] | None:
        """Return the mask of tokens whose last character can be completed by at most `count`
        further tokens of one byte each; None: every token. It has the form of constraint.Mask and
        is read-only."""
        return self._finished[count] if count < MOST_LACKING else None


def _lacking(text: bytes) -> int:
    """Return the number of bytes missing from the last UTF-8 character of `text`. Return 0 if the
    character is complete, or if `text` has no first byte of a character."""
    for behind in range(min(len(text), MOST_LACKING)):
        byte = text[-1 - behind]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return max(0, length - 1 - behind)
        if byte < 0x80:
            return 0
    return 0


def _alphabet() -> Mapping[str, int]:
    """Return the byte of each character in the alphabet of byte-level BPE. A printable Latin-1
    character is its own byte. Characters from U+0100 on stand for the other bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF_CHARACTER = _alphabet()
_CHARACTER_OF_LATIN = str.maketrans(
    {chr(byte): character for character, byte in _BYTE_OF_CHARACTER.items()}
)


def bytes_by_id(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    """Return the bytes of each token, by id. vocabulary: token ids by name, from a byte-level
    tokenizer.json. Raises KeyError with the first character standing for no byte."""
    return {
        token: bytes(_BYTE_OF_CHARACTER[character] for character in name)
        for name, token in vocabulary.items()
    }


def name_of_bytes(content: bytes) -> str:
    """Return the token's name in a byte-level vocabulary: `Ġis` for the bytes ` is`."""
    return content.decode("latin-1").translate(_CHARACTER_OF_LATIN)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model as bytes. tokens: the bytes added to the text by each token id; b"" for
    a token without text. eos_ids: ids of the tokens ending an answer."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]

    @staticmethod
    def load(model_dir: Path, size: int, eos_ids: Iterable[int]) -> "Vocabulary | None":
        """Return the vocabulary in a checkpoint folder's tokenizer.json; None without a byte-level
        tokenizer.json. size: number of tokens of the model. eos_ids: end tokens; ids outside the
        vocabulary are left out."""
        try:
            specification = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
            found = _token_bytes(specification)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        tokens = tuple(found.get(token, b"") for token in range(size))
        return Vocabulary(tokens, tuple(token for token in eos_ids if 0 <= token < size))

    @cached_property
    def unfinished(self) -> UnfinishedTokens:
        """Return the tokens ending inside a UTF-8 character. A first call may take 50 ms."""
        return UnfinishedTokens.of(self.tokens)


ALL_BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,))
"""A small vocabulary: one token for each byte, and an end token."""


def _token_bytes(specification: Mapping[str, Any]) -> dict[int, bytes]:
    added = specification.get("added_tokens") or []
    names = {str(item["content"]) for item in added}
    vocabulary = specification["model"]["vocab"]
    found = bytes_by_id({name: token for name, token in vocabulary.items() if name not in names})
    for item in added:
        found[int(item["id"])] = b"" if item.get("special") else str(item["content"]).encode()
    return found

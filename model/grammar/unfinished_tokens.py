"""Tokens whose bytes end inside a character of UTF-8. Pure values."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

MOST_LACKING = 3
"""Bytes that a character may lack: one of UTF-8 has up to four."""


class UnfinishedTokens:
    def __init__(self, vocab: int, lacking: Mapping[int, int]) -> None:
        """vocab: tokens of the vocabulary. lacking: the bytes that the last character still needs,
        1 to 3, of those tokens that end inside one."""
        self._finished = []
        for count in range(MOST_LACKING):
            bits = np.ones(-(-vocab // 32) * 32, dtype=np.bool_)
            bits[[token for token, lacks in lacking.items() if lacks > count]] = False
            self._finished.append(np.packbits(bits, bitorder="little").view(np.int32))

    @staticmethod
    def of(tokens: Sequence[bytes]) -> "UnfinishedTokens":
        """tokens: the vocabulary's bytes, by id."""
        found = {token: _lacking(text) for token, text in enumerate(tokens) if text[-1:] >= b"\x80"}
        lacking = {token: lacks for token, lacks in found.items() if lacks}
        return UnfinishedTokens(len(tokens), lacking)

    def finished_by(self, count: int) -> NDArray[np.int32] | None:
        """Return the mask of the tokens whose last character so many further tokens finish, a byte
        each; None: of every token. As constraint.Mask; nobody writes to it."""
        return self._finished[count] if count < MOST_LACKING else None


def _lacking(text: bytes) -> int:
    """Return how many bytes the character needs that `text` ends in; 0: it is whole, or no
    character's beginning is in the text."""
    for behind in range(min(len(text), MOST_LACKING)):
        byte = text[-1 - behind]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return max(0, length - 1 - behind)
        if byte < 0x80:
            return 0
    return 0

"""Tokens whose bytes end inside a character of UTF-8. Pure values."""

from collections.abc import Mapping, Sequence, Set

MOST_LACKING = 3
"""Bytes that a character may lack: one of UTF-8 has up to four."""


class UnfinishedTokens:
    def __init__(self, lacking: Mapping[int, int]) -> None:
        """lacking: the bytes that each token's last character still needs, 1 to 3."""
        self._beyond = tuple(
            frozenset(token for token, lacks in lacking.items() if lacks > count)
            for count in range(MOST_LACKING)
        )

    @staticmethod
    def of(tokens: Sequence[bytes]) -> "UnfinishedTokens":
        """tokens: the vocabulary's bytes, by id."""
        found = {token: _lacking(text) for token, text in enumerate(tokens) if text[-1:] >= b"\x80"}
        return UnfinishedTokens({token: lacks for token, lacks in found.items() if lacks})

    def beyond(self, count: int) -> Set[int]:
        """Return the tokens behind which so many tokens may not finish the character."""
        return self._beyond[count] if count < len(self._beyond) else frozenset()


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


NO_UNFINISHED = UnfinishedTokens({})
"""Of a vocabulary whose texts are not known."""

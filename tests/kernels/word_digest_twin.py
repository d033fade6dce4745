"""The naive reference of the kernel of engine/tiers/gpu/word_digest.py, word by word."""

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
_ODD = 0xD6E8FEB86659FD93


def _mix(value: int) -> int:
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def _remix(value: int) -> int:
    value = ((value ^ value >> 33) * 0xFF51AFD7ED558CCD) & MASK
    value = ((value ^ value >> 33) * 0xC4CEB9FE1A85EC53) & MASK
    return value ^ value >> 33


def digest(content: NDArray[np.uint8]) -> int:
    """Return the digest of a page, region after region, or of a slot, in whole words."""
    first = second = 0
    for place, word in enumerate(content.view(np.uint64).tolist()):
        mixed = _mix(word ^ (place * _ODD & MASK))
        first, second = (first + mixed) & MASK, (second + _remix(mixed)) & MASK
    return first << 64 | second

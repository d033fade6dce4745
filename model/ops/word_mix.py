"""The mixer of 32-bit words behind all noise of the model, in PyTorch. `word_mix_kernel` computes
the same function on a GPU, bit by bit.

It is the lowest-bias mixer of the form xorshift, multiply, xorshift, multiply, xorshift:
https://github.com/skeeto/hash-prospector. It maps words one to one.
"""

from torch import Tensor

SHIFTS = (16, 15, 16)
FACTORS = (0x7FEB352D, 0x846CA68B)
MASK = 0xFFFFFFFF


def mixed(words: Tensor) -> Tensor:
    """Return hash words with mixed bits. Words and result are int64 with 32 bits each."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        words = ((words ^ (words >> shift)) * factor) & MASK
    return words ^ (words >> SHIFTS[-1])

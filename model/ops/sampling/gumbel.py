"""The random noise for sampling a token: a hash of (seed, position, token id), the same on every
device.

Owns the hash and its Gumbel values; model/ops/sampling/sample.py computes the same function on a
GPU. The hash and the uniform variate agree bit by bit; the two logarithms only to float32 rounding
there (float64 here). Does not know logits. Pure functions.
"""

import hashlib

import torch
from torch import Tensor

# The lowest-bias 32-bit mixer of the form xorshift, multiply, xorshift, multiply, xorshift:
# https://github.com/skeeto/hash-prospector
SHIFTS = (16, 15, 16)
FACTORS = (0x7FEB352D, 0x846CA68B)
# The largest float32 below 1: keeps the logarithm of 1 - u finite.
LARGEST = 1 - 2.0**-24
_MASK = 0xFFFFFFFF


def noise_key(seed: int) -> tuple[int, int]:
    """Return the hash key of a seed: two words of 32 bits, as signed integers to fit an int32
    tensor. Neighbouring seeds get unrelated keys; any integer is a seed."""
    digest = hashlib.sha256(str(seed).encode()).digest()
    first, second = digest[:4], digest[4:8]
    return int.from_bytes(first, "little", signed=True), int.from_bytes(
        second, "little", signed=True
    )


def gumbel(key: tuple[int, int], position: int, vocab: int) -> Tensor:
    """Return the Gumbel noise of each token id at this position, [vocab] float64, finite."""
    # Each token takes two rounds. With one, the noise of two positions would be one sequence,
    # reordered.
    first = _mix(torch.tensor((position ^ key[0]) & _MASK))
    second = _mix((first + key[1]) & _MASK)
    hashed = _mix((_mix(torch.arange(vocab) ^ first) + second) & _MASK)
    uniform = ((hashed.float() + 0.5) * 2.0**-32).clamp_max(LARGEST)
    # The tail that decides samples is u near 0, and float32 is fine-grained there. So use -log(1 -
    # u), not -log(u).
    return -(-(-uniform.double()).log1p()).log()


def _mix(words: Tensor) -> Tensor:
    """Return hash words with mixed bits. Words and result are int64 with 32 bits each."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        words = ((words ^ (words >> shift)) * factor) & _MASK
    return words ^ (words >> SHIFTS[-1])

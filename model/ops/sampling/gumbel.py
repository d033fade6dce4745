"""The random noise for sampling a token: a hash of (seed, position, token id), the same on every
device.

Owns the hash and its Gumbel values; model/ops/sampling/sample.py computes the same function on a
GPU. The hash and the uniform variate agree bit by bit; the two logarithms only to float32 rounding
there (float64 here). Does not know logits. Pure functions.
"""

import hashlib

import torch
from torch import Tensor

from tasuki.model.ops.word_mix import MASK, mixed

# The largest float32 below 1: keeps the logarithm of 1 - u finite.
LARGEST = 1 - 2.0**-24


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
    first = mixed(torch.tensor((position ^ key[0]) & MASK))
    second = mixed((first + key[1]) & MASK)
    hashed = mixed((mixed(torch.arange(vocab) ^ first) + second) & MASK)
    uniform = ((hashed.float() + 0.5) * 2.0**-32).clamp_max(LARGEST)
    # The tail that decides samples is u near 0, and float32 is fine-grained there. So use -log(1 -
    # u), not -log(u).
    return -(-(-uniform.double()).log1p()).log()

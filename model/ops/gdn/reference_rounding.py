"""Rounding of recurrent states to bfloat16, in PyTorch: up or down at random, so that errors have
mean zero.

A float32 has 16 bits more than a bfloat16. Noise of 16 bits is added to them, and they are cut off.
So a number is rounded away from zero with a probability equal to the fraction cut off. Numbers of
bfloat16 stay as they are. Noise is a hash of the layer, the head, the number of tokens in the
state, and the element. It does not depend on batches, slots, ranks or devices.

Steps round states after each token. Prompts round them at every multiple of CHUNK_TOKENS tokens of
the sequence. A state stored elsewhere in a prompt is a rounded copy, and the prompt goes
on with the state in float32. So a prompt cut at multiples of CHUNK_TOKENS has the states of the
whole prompt, bit by bit. A prompt that goes on from another place has one rounding more.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasuki.model.ops.word_mix import MASK, mixed

from .reference_chunked import CHUNK_TOKENS

ROUNDED = torch.bfloat16
"""The dtype of states rounded with noise."""
ROW_STEP = 0x9E3779B9
"""Distance of the hash words of two neighbouring rows before mixing."""
KEY_WORDS = 0x85EBCA6B
"""Hash word of key 0 before mixing."""
LAYER_SHIFT = 16
"""Number of bits of a head's number in its layer."""


class StateRounding(Protocol):
    """Rounding of float32 states to bfloat16."""

    def rounded(self, states: Tensor, counts: Tensor) -> Tensor:
        """Return states [N, heads, value_dim, key_dim] float32 as bfloat16. counts: [N] int64,
        tokens in each."""


@dataclass(frozen=True)
class StateNoise:
    """`StateRounding` of one layer. layer: number among the recurrent layers. first_head: number,
    among all ranks' value heads, of this rank's first one."""

    layer: int
    first_head: int = 0

    @property
    def origin(self) -> int:
        """Return the number of this rank's first head, counted over layers. Kernels take it."""
        return (self.layer << LAYER_SHIFT) + self.first_head

    def rounded(self, states: Tensor, counts: Tensor) -> Tensor:
        noise = self.noise(counts, *states.shape[1:])
        moved = (states.view(torch.int32) + noise) & -0x10000
        return torch.where(states.isnan(), states, moved.view(torch.float32)).to(ROUNDED)

    def noise(self, counts: Tensor, heads: int, value_dim: int, key_dim: int) -> Tensor:
        """Return the noise for states after `counts` [N] tokens, [N, heads, value_dim, key_dim]
        int32 of 16 bits."""
        device = counts.device
        head = torch.arange(heads, device=device) + self.origin
        words = mixed((mixed(head) + counts[:, None]) & MASK)[..., None]
        rows = mixed((words + torch.arange(value_dim, device=device) * ROW_STEP) & MASK)
        keys = mixed((torch.arange((key_dim + 1) // 2, device=device) + KEY_WORDS) & MASK)
        # The product of a uniform word and an odd one is uniform. It has the noise of a key and of
        # the key half a row behind it. Its low bits are those of int32.
        words = rows.int()[..., None] * (keys | 1).int()
        upper = (words >> 16) & 0xFFFF
        return torch.cat([(words & 0xFFFF) ^ upper, upper], dim=-1)[..., :key_dim]


def chunk_bounds(begin: int, end: int, before: int | None) -> list[tuple[int, int]]:
    """Divide the tokens [begin, end) of a forward into chunks, and return their bounds.

    before: tokens of the sequence before the forward. Chunks then end at multiples of CHUNK_TOKENS
    tokens of the sequence, where states are rounded. None: they are counted from `begin`.
    """
    bounds = []
    while begin < end:
        inside = 0 if before is None else (before + begin) % CHUNK_TOKENS
        stop = min(end, begin + CHUNK_TOKENS - inside)
        bounds.append((begin, stop))
        begin = stop
    return bounds

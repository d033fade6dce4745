"""The layers of a block drafter in PyTorch: the path of CPUs, and a reference for kernels.

A context row of a token is the normed product of its streams. Each layer makes a key and a value
from it, which go into the layer's pages. A block is one sampled token and masks behind it. Its
rows attend to all keys before the block and to all rows of the block, in both directions. The
block's own keys and values are in no page: a proposal writes nothing.

Positions are those of the tokens in their sequence, also in prompts with pictures. Does not know
sequences, sampling or the target's layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.drafter_shape import DrafterShape
from tasuki.model.ops.attention.page_rows import read_pages, write_rows
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.ops.linear.reference import product, swiglu
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.pycache.layout import PAGE_TOKENS

from .weights import BlockLayerWeights, DrafterWeights

Turns = tuple[Tensor, Tensor]
"""Cos and sin of rotary angles, each [T, 1, head_dim / 2] float32."""


@dataclass(frozen=True)
class BlockPlace:
    """One block among the rows of a pass. start: its first row. length: number of its rows. before:
    tokens of its sequence before it. pages [n] int64: ids of the pages of these tokens."""

    start: int
    length: int
    before: int
    pages: Tensor


class DrafterLayers:
    """Operators of a block drafter's layers. Owns the memory for rows gathered from pages. Thread
    rule: one thread."""

    def __init__(self, shape: DrafterShape, weights: DrafterWeights) -> None:
        self._shape = shape
        self._weights = weights
        self._angles = RotaryAngles.stretched(shape.head_dim, shape.rope_theta, None)
        self._room = RowRoom()

    def beside(self) -> "DrafterLayers":
        """Return the same layers for another thread, with gathered rows of their own."""
        return DrafterLayers(self._shape, self._weights)

    def turns(self, positions: Tensor) -> Turns:
        """Return the rotary angles of positions [T]."""
        return self._angles.table(positions)

    def context(self, streams: Tensor) -> Tensor:
        """Return context rows [T, hidden] of streams [T, target layers * hidden], which are side by
        side in the order of target_layers."""
        weights = self._weights
        return self._normed(product(streams, weights.fc), weights.context_norm)

    def write(
        self, layer: int, context: Tensor, kv: Tensor, places: tuple[Tensor, Tensor], turns: Turns
    ) -> None:
        """Write keys and values of context rows [T, hidden] into a layer's pages. kv: as in
        page_rows.py. places: page id and offset of each row, both [T] int64."""
        k, v = self._keys_values(self._weights.layers[layer], context, turns)
        write_rows(k, v, kv, places)

    def propose(
        self, x: Tensor, blocks: Sequence[BlockPlace], pages: Sequence[Tensor], turns: Turns
    ) -> Tensor:
        """Run the embedded rows x [T, hidden] of all blocks through all layers. Return them after
        the last norm, [T, hidden]. pages: each layer's keys and values."""
        for weights, kv in zip(self._weights.layers, pages, strict=True):
            mixed = self._attend(self._normed(x, weights.mixer_norm), weights, blocks, kv, turns)
            x = x + product(mixed, weights.out_proj)
            mlp = weights.mlp
            x = x + swiglu(self._normed(x, weights.mlp_norm), mlp.gate_up, mlp.down)
        return self._normed(x, self._weights.norm)

    def _attend(
        self,
        x: Tensor,
        weights: BlockLayerWeights,
        blocks: Sequence[BlockPlace],
        kv: Tensor,
        turns: Turns,
    ) -> Tensor:
        """Return the attention of rows x [T, hidden], [T, query_heads * head_dim]."""
        shape = self._shape
        q = product(x, weights.q_proj).view(len(x), shape.query_heads, shape.head_dim)
        q = apply_rotary(self._normed(q, weights.q_norm), *turns).transpose(0, 1)
        own = [rows.transpose(0, 1) for rows in self._keys_values(weights, x, turns)]
        mixed = torch.empty_like(q)
        for block in blocks:
            rows = slice(block.start, block.start + block.length)
            seen = read_pages(kv, block.pages, x.dtype, self._room)
            keys, values = (
                torch.cat([before[:, : block.before], of_block[:, rows]], dim=1)
                for before, of_block in zip(seen, own, strict=True)
            )
            mixed[:, rows] = functional.scaled_dot_product_attention(
                q[None, :, rows], keys[None], values[None], enable_gqa=True
            )[0]
        return mixed.transpose(0, 1).flatten(1)

    def _keys_values(
        self, weights: BlockLayerWeights, x: Tensor, turns: Turns
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of rows x [T, hidden], each [T, kv_heads, head_dim]."""
        shape = self._shape
        rows = product(x, weights.kv_proj).view(len(x), 2, shape.kv_heads, shape.head_dim)
        k, v = rows.unbind(1)
        return apply_rotary(self._normed(k, weights.k_norm), *turns), v

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._shape.norm_eps)


def places_of(positions: Tensor, owners: Tensor, page_table: Tensor) -> tuple[Tensor, Tensor]:
    """Return page id and offset in the page of each token, both [T] int64. positions, owners [T]:
    position and sequence index of each token. page_table [B, pages]: page ids."""
    return page_table[owners, positions // PAGE_TOKENS], positions % PAGE_TOKENS

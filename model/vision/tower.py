"""The vision tower: it turns the patches of one picture into rows, the language model's input for
the picture's tokens.

VisionTower: weights and shape, shared by all pictures. Encode: one picture inside the tower. It
runs some blocks at a time, so that a large picture does not delay a step of the engine. Between two
calls it keeps only the patches' hidden states.

Rows are a function of the picture and the weights. One call has one picture. So a row has the same
bits with or without other pictures, and for any division of the blocks into calls. Attention is
over one picture, without a mask. Source: transformers 5.24, the tower of Qwen3.5.

On a GPU all is launched in the current stream, and nothing waits for the device.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasuki.model.ops.attention.rope import apply_rotary

from .config import VisionConfig
from .grid import PictureError, PictureGrid, PositionTaps, rotary_angles
from .pixels import PicturePatches, level_numbers, looked_up
from .processor import PixelRules
from .weights import Affine, BlockWeights, TowerWeights

MLP_ROWS = 4096
"""Number of patches at a time in an MLP, in the first product and in the rotation. It limits the
memory of inner activations."""
_GPU_ATTENTION = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention's implementations for float32 on a GPU, the preferred first."""


class VisionTower:
    """The vision tower on one device. Immutable, so free to share; each Encode (one picture)
    belongs to one thread."""

    def __init__(self, config: VisionConfig, weights: TowerWeights, rules: PixelRules) -> None:
        """rules: the image rules, with the normalisation of colour levels. REQUIRES: weights fit
        the config."""
        self.config = config
        self.weights = weights
        self.rules = rules
        self._numbers = level_numbers(rules).to(weights.device, weights.dtype)

    @torch.inference_mode()
    def begin(self, patches: PicturePatches) -> "Encode":
        """Begin to encode a picture. Return it as an Encode, before the first block. Raises
        PictureError unless the patches fit the tower."""
        config, weights, grid = self.config, self.weights, patches.grid
        wanted = (grid.patches, config.patch_values)
        if tuple(patches.levels.shape) != wanted or grid.merge != config.merge:
            raise PictureError(
                f"patches of shape {list(patches.levels.shape)}, merged by {grid.merge}, do not "
                f"fit a tower of {list(wanted)}, merged by {config.merge}; use its own processor"
            )
        levels = moved(patches.levels, weights.device)
        hidden = torch.cat(
            [
                _product(looked_up(part, self._numbers), weights.patch)
                for part in torch.split(levels, MLP_ROWS)
            ]
        )
        taps = PositionTaps.of(grid, config.side)
        placed = PositionTaps(moved(taps.index, weights.device), moved(taps.weight, weights.device))
        return Encode(self, grid, hidden + placed.rows(weights.positions).to(hidden.dtype))

    def rows(self, patches: PicturePatches) -> Tensor:
        """Encode a whole picture in one call. Return its rows [tokens, out_hidden] in the weights'
        dtype. Raises PictureError."""
        encode = self.begin(patches)
        encode.run(self.config.depth)
        return encode.rows()


class Encode:
    """One picture being encoded by the vision tower. Thread rule: one thread."""

    def __init__(self, tower: VisionTower, grid: PictureGrid, hidden: Tensor) -> None:
        """hidden [patches, hidden]: hidden states of the patches, the input of the first block."""
        self.grid = grid
        self._tower = tower
        self._hidden = hidden
        self._next = 0
        config = tower.config
        cos, sin = rotary_angles(grid, config.head_dim, config.rope_theta)
        self._cos, self._sin = moved(cos, hidden.device), moved(sin, hidden.device)

    @property
    def blocks_left(self) -> int:
        return self._tower.config.depth - self._next

    @torch.inference_mode()
    def run(self, blocks: int) -> None:
        """Run the picture through the next `blocks` blocks, or through the rest if they are fewer.
        REQUIRES: blocks >= 0."""
        end = min(self._next + blocks, self._tower.config.depth)
        for weights in self._tower.weights.blocks[self._next : end]:
            self._hidden = self._block(self._hidden, weights)
            self._next += 1

    @torch.inference_mode()
    def rows(self) -> Tensor:
        """Return the picture's rows [tokens, out_hidden], one per token in order. REQUIRES: all
        blocks have run."""
        if self.blocks_left:
            raise RuntimeError(f"{self.blocks_left} blocks of the picture have not run; run them")
        config, weights = self._tower.config, self._tower.weights
        normed = _norm(self._hidden, weights.merger_norm, config.norm_eps)
        joined = normed.view(self.grid.tokens, config.merged * config.hidden)
        inner = functional.gelu(_product(joined, weights.merger_fc1))
        return _product(inner, weights.merger_fc2)

    def _block(self, hidden: Tensor, weights: BlockWeights) -> Tensor:
        eps = self._tower.config.norm_eps
        normed = _norm(hidden, weights.attention_norm, eps)
        hidden = hidden + _product(self._attention(normed, weights), weights.proj)
        parts = torch.split(hidden, MLP_ROWS)
        return torch.cat([part + _mlp(part, weights, eps) for part in parts])

    def _attention(self, normed: Tensor, weights: BlockWeights) -> Tensor:
        """Return the outputs of all attention heads, [patches, hidden], the input of the
        projection."""
        config = self._tower.config
        heads = _product(normed, weights.qkv).view(-1, 3, config.heads, config.head_dim)
        if heads.is_cuda and heads.dtype != torch.float32:
            # Triton is loaded on a GPU only.
            from tasuki.model.ops.attention.picture_attention import picture_attention, rotate_heads

            rotate_heads(heads, self._cos, self._sin)
            return picture_attention(heads).flatten(1)
        # Queries and keys of all heads are rotated together.
        self._turn(heads[:, :2].flatten(1, 2))
        query, key, value = heads.unbind(1)
        with _attention_kernels(query.device):
            found = functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                key.transpose(0, 1)[None],
                value.transpose(0, 1)[None],
                scale=1 / math.sqrt(config.head_dim),
            )
        return found[0].transpose(0, 1).flatten(1)

    def _turn(self, x: Tensor) -> None:
        """Rotate x [patches, heads, head_dim] in place."""
        each = zip(
            *(torch.split(some, MLP_ROWS) for some in (x, self._cos, self._sin)), strict=True
        )
        for part, cos, sin in each:
            part.copy_(apply_rotary(part, cos, sin))


@contextmanager
def _attention_kernels(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return
    with sdpa_kernel(_GPU_ATTENTION, set_priority=True):
        yield


def moved(x: Tensor, device: torch.device) -> Tensor:
    """Return a host's tensor on the device, for later work in its current stream. A copy from
    memory that is not pinned would wait for the stream."""
    if x.device == device or device.type == "cpu":
        return x.to(device)
    return (x if x.is_cuda else x.pin_memory()).to(device, non_blocking=True)


def _mlp(hidden: Tensor, weights: BlockWeights, eps: float) -> Tensor:
    normed = _norm(hidden, weights.mlp_norm, eps)
    inner = functional.gelu(_product(normed, weights.fc1), approximate="tanh")
    return _product(inner, weights.fc2)


def _product(x: Tensor, affine: Affine) -> Tensor:
    return functional.linear(x, affine.weight, affine.bias)


def _norm(x: Tensor, affine: Affine, eps: float) -> Tensor:
    """Return the LayerNorm of x [n, hidden]. The weight scales as published, without 1 added."""
    return functional.layer_norm(x, (x.shape[-1],), affine.weight, affine.bias, eps)

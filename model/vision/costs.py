"""Costs of a vision tower: FLOPs of a picture, bytes of weights, memory while a picture is encoded.

The engine plans the blocks of a step and the memory of a tower with them. Only matrix products and
attention are counted; norms and activations add a percent. All functions are pure.
"""

from dataclasses import dataclass

import torch

from tasuki.model.costs import ShapesOnly

from .config import VisionConfig
from .tower import MLP_ROWS
from .weights import assemble_tower


@dataclass(frozen=True)
class EncodeFlops:
    """FLOPs to encode a picture. linear: FLOPs of a block per patch. quadratic: FLOPs of a block
    per pair of patches. patch, merger: FLOPs per patch before and after the blocks. depth: number
    of blocks."""

    linear: float
    quadratic: float
    patch: float
    merger: float
    depth: int

    @staticmethod
    def of(config: VisionConfig) -> "EncodeFlops":
        hidden, wide = config.hidden, config.merged * config.hidden
        return EncodeFlops(
            linear=2.0 * (4 * hidden * hidden + 2 * hidden * config.intermediate),
            quadratic=4.0 * hidden,
            patch=2.0 * config.patch_values * hidden,
            merger=2.0 * wide * (wide + config.out_hidden) / config.merged,
            depth=config.depth,
        )

    def block(self, patches: int) -> float:
        """Return the FLOPs of one block for a picture of `patches` patches."""
        return patches * (self.linear + self.quadratic * patches)

    def picture(self, patches: int) -> float:
        """Return the FLOPs to encode a whole picture of `patches` patches."""
        return self.depth * self.block(patches) + patches * (self.patch + self.merger)


@dataclass(frozen=True)
class TowerBytes:
    """Memory of a vision tower on a device, in bytes. weights: all tensors. per_patch: activations
    of one patch during a block. fixed: activations that do not grow with the picture."""

    weights: int
    per_patch: int
    fixed: int

    @staticmethod
    def of(config: VisionConfig, dtype: torch.dtype) -> "TowerBytes":
        """Count and return the bytes of a tower, without memory for its weights."""
        weights = assemble_tower(config, ShapesOnly(), dtype, "meta")
        # Input, norm, query, key and value, the rotated two, the heads' output: 8 rows. Angles are
        # float32: cos and sin of half a head.
        rows = 8 * config.hidden * dtype.itemsize
        angles = config.head_dim * torch.float32.itemsize
        inner = 2 * MLP_ROWS * config.intermediate * dtype.itemsize
        return TowerBytes(weights.nbytes, rows + angles, inner)

    def encode(self, patches: int) -> int:
        """Return the bytes of activations while one picture is encoded, without its pixels."""
        return self.per_patch * patches + self.fixed


def rows_bytes(tokens: int, config: VisionConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a picture's output, one row for each of its `tokens` tokens."""
    return tokens * config.out_hidden * dtype.itemsize

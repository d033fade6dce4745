"""The vision tower as a trainable module, for many pictures of one size at once.

Names, shapes and arithmetic are those of the product's tower (model/vision), so state_dict() with
`model.visual.` before each name gives a checkpoint's tensors.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasuki.model.ops.attention.rope import apply_rotary
from tasuki.model.vision.config import COLOURS, VisionConfig
from tasuki.model.vision.grid import PictureGrid, PositionTaps, rotary_angles

PREFIX = "model.visual."
_SPREAD = 0.02
_GELU = 0.35
"""Root mean square of a GELU's outputs here, about."""


class TrainedTower(nn.Module):
    """A tower for pictures of one grid. The grid has no effect on the parameters."""

    def __init__(self, config: VisionConfig, grid: PictureGrid, spread: float) -> None:
        """spread: of the elements of a row, before the training."""
        super().__init__()
        self._grid = grid
        self.patch_embed = nn.ModuleDict({"proj": _PatchProduct(config)})
        self.pos_embed = nn.Embedding(config.side * config.side, config.hidden)
        self.blocks = nn.ModuleList([_Block(config) for _ in range(config.depth)])
        self.merger = _Merger(config)
        taps = PositionTaps.of(grid, config.side)
        cos, sin = rotary_angles(grid, config.head_dim, config.rope_theta)
        for name, tensor in (
            ("_index", taps.index),
            ("_weight", taps.weight),
            ("_cos", cos),
            ("_sin", sin),
        ):
            self.register_buffer(name, tensor, persistent=False)
        nn.init.normal_(self.pos_embed.weight, std=_SPREAD)
        _scale(self.merger.linear_fc2, spread)

    def forward(self, levels: Tensor) -> Tensor:
        """Return the rows [B, tokens, out_hidden] of pictures. levels [B, patches, patch_values]
        uint8: colour levels of their patches, normalised here with mean and deviation a half."""
        values = levels.float() / 127.5 - 1
        learned = (self.pos_embed.weight[self._index] * self._weight[..., None]).sum(1)
        x = self.patch_embed["proj"](values) + learned
        for block in self.blocks:
            x = block(x, self._cos, self._sin)
        return self.merger(x, self._grid.tokens)


@torch.no_grad()
def _scale(last: nn.Linear, spread: float) -> None:
    """Scale a layer behind a GELU, so that its outputs have about this spread."""
    last.weight.normal_(std=spread / (_GELU * math.sqrt(last.in_features)))
    last.bias.normal_(std=spread)


class _PatchProduct(nn.Module):
    """The convolution of patches. Its stride is its kernel, so it is one product a patch."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        shape = (config.hidden, COLOURS, config.frames, config.patch, config.patch)
        self.weight = nn.Parameter(torch.randn(shape) / math.sqrt(config.patch_values))
        self.bias = nn.Parameter(torch.zeros(config.hidden))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.flatten(1), self.bias)


class _Block(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden, config.norm_eps
        self._heads, self._dim = config.heads, config.head_dim
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(hidden, 3 * hidden), "proj": nn.Linear(hidden, hidden)}
        )
        self.mlp = nn.ModuleDict(
            {
                "linear_fc1": nn.Linear(hidden, config.intermediate),
                "linear_fc2": nn.Linear(config.intermediate, hidden),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self.attn["qkv"](self.norm1(x)).unflatten(-1, (3, self._heads, self._dim))
        q, k, v = heads.unbind(2)
        # The angles are of one picture's patches, alike for all.
        q, k = (apply_rotary(part.transpose(0, 1).flatten(1, 2), cos, sin) for part in (q, k))
        q, k = (
            part.unflatten(1, (x.shape[0], self._heads)).permute(1, 2, 0, 3).to(v.dtype)
            for part in (q, k)
        )
        found = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2))
        x = x + self.attn["proj"](found.transpose(1, 2).flatten(2))
        inner = functional.gelu(self.mlp["linear_fc1"](self.norm2(x)), approximate="tanh")
        return x + self.mlp["linear_fc2"](inner)


class _Merger(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        wide = config.merged * config.hidden
        self.norm = nn.LayerNorm(config.hidden, config.norm_eps)
        self.linear_fc1 = nn.Linear(wide, wide)
        self.linear_fc2 = nn.Linear(wide, config.out_hidden)

    def forward(self, x: Tensor, tokens: int) -> Tensor:
        joined = self.norm(x).reshape(x.shape[0], tokens, -1)
        return self.linear_fc2(functional.gelu(self.linear_fc1(joined)))

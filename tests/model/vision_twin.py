"""Simple reference implementations of the vision tower and of a prompt's positions.

Written from the published description, not from the served path. Each patch, head and token is
computed on its own in float32 from the published tensors, by their published names. Slow: tens of
milliseconds for a patch.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.grid import PictureGrid

Tensors = Mapping[str, Tensor]
"""The tower's published tensors, by name without the prefix, such as `blocks.0.norm1.weight`."""


def reference_rows(
    values: Tensor, grid: PictureGrid, tensors: Tensors, config: VisionConfig
) -> Tensor:
    """Return the tower's output for a picture, [tokens, out_hidden] float32. values [patches,
    patch_values] float32: normalised patches."""
    places = patch_places(grid)
    kernel = tensors["patch_embed.proj.weight"].float().flatten(1)
    x = torch.stack(
        [
            kernel @ patch + tensors["patch_embed.proj.bias"].float() + learned
            for patch, learned in zip(values, _learned(places, grid, tensors, config), strict=True)
        ]
    )
    for block in range(config.depth):
        x = _block(x, places, f"blocks.{block}", tensors, config)
    normed = _layer_norm(x, "merger.norm", tensors, config)
    rows = []
    for token in range(grid.tokens):
        joined = normed[token * config.merged : (token + 1) * config.merged].flatten()
        inner = _affine(joined, "merger.linear_fc1", tensors)
        exact = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
        rows.append(_affine(exact, "merger.linear_fc2", tensors))
    return torch.stack(rows)


def patch_places(grid: PictureGrid) -> list[tuple[int, int]]:
    """Return the row and the column of each patch, in patch order."""
    merge = grid.merge
    return [
        (square_row * merge + row, square_column * merge + column)
        for square_row in range(grid.rows // merge)
        for square_column in range(grid.columns // merge)
        for row in range(merge)
        for column in range(merge)
    ]


def _learned(
    places: Sequence[tuple[int, int]], grid: PictureGrid, tensors: Tensors, config: VisionConfig
) -> list[Tensor]:
    """Return each patch's learned position, by bilinear interpolation with aligned corners."""
    side = config.side
    table = tensors["pos_embed.weight"].float().view(side, side, -1)
    found = []
    for row, column in places:
        y = row * (side - 1) / max(grid.rows - 1, 1)
        x = column * (side - 1) / max(grid.columns - 1, 1)
        top, left = int(y), int(x)
        bottom, right = min(top + 1, side - 1), min(left + 1, side - 1)
        upper = table[top, left] * (1 - (x - left)) + table[top, right] * (x - left)
        lower = table[bottom, left] * (1 - (x - left)) + table[bottom, right] * (x - left)
        found.append(upper * (1 - (y - top)) + lower * (y - top))
    return found


def _block(
    x: Tensor, places: Sequence[tuple[int, int]], name: str, tensors: Tensors, config: VisionConfig
) -> Tensor:
    hidden, size = config.hidden, config.head_dim
    mixed = _affine(_layer_norm(x, f"{name}.norm1", tensors, config), f"{name}.attn.qkv", tensors)
    heads = []
    for head in range(config.heads):
        query, key, value = (
            mixed[:, part * hidden + head * size : part * hidden + (head + 1) * size]
            for part in range(3)
        )
        query, key = _turned(query, places, config), _turned(key, places, config)
        heads.append(torch.softmax(query @ key.T * size**-0.5, dim=-1) @ value)
    x = x + _affine(torch.cat(heads, dim=1), f"{name}.attn.proj", tensors)
    inner = _affine(
        _layer_norm(x, f"{name}.norm2", tensors, config), f"{name}.mlp.linear_fc1", tensors
    )
    curve = torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3))
    return x + _affine(0.5 * inner * (1 + curve), f"{name}.mlp.linear_fc2", tensors)


def _turned(x: Tensor, places: Sequence[tuple[int, int]], config: VisionConfig) -> Tensor:
    """Return x [patches, head_dim] after the rotary embedding: rotate each pair of elements j and j
    + head_dim / 2."""
    half, quarter = config.head_dim // 2, config.head_dim // 4
    found = torch.empty_like(x)
    for patch, (row, column) in enumerate(places):
        for pair in range(half):
            place = row if pair < quarter else column
            angle = place * config.rope_theta ** (-2 * (pair % quarter) / half)
            first, second = x[patch, pair], x[patch, pair + half]
            found[patch, pair] = first * math.cos(angle) - second * math.sin(angle)
            found[patch, pair + half] = second * math.cos(angle) + first * math.sin(angle)
    return found


def _affine(x: Tensor, name: str, tensors: Tensors) -> Tensor:
    return x @ tensors[f"{name}.weight"].float().T + tensors[f"{name}.bias"].float()


def _layer_norm(x: Tensor, name: str, tensors: Tensors, config: VisionConfig) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    scale = (centred.square().mean(dim=-1, keepdim=True) + config.norm_eps).rsqrt()
    return centred * scale * tensors[f"{name}.weight"].float() + tensors[f"{name}.bias"].float()


def reference_positions(
    tokens: Sequence[int], grids: Sequence[PictureGrid], ids: PictureTokens
) -> tuple[Tensor, int]:
    """Return the three-axis positions [3, tokens] int64 and the delta of a valid prompt, computed
    token by token. grids: grids of the prompt's pictures, in their order."""
    found: list[tuple[int, int, int]] = []
    next_position, place = 0, 0
    waiting: Callable[[], PictureGrid] = iter(grids).__next__
    while place < len(tokens):
        if tokens[place] not in (ids.image, ids.video):
            found.append((next_position, next_position, next_position))
            next_position, place = next_position + 1, place + 1
            continue
        grid = waiting()
        for row in range(grid.token_rows):
            for column in range(grid.token_columns):
                found.append((next_position, next_position + row, next_position + column))
                place += 1
        next_position += max(grid.token_rows, grid.token_columns)
    return torch.tensor(found).reshape(-1, 3).T, next_position - len(tokens)

"""From pixels to patches: the image processor of Qwen3.5 checkpoints, as pure functions.

    RGB uint8 -> smart resize -> bicubic -> patches uint8 -> numbers float32

Levels stay uint8 up to the tower, a quarter of the bytes. `normalised` computes the tower's input
numbers. A patch has its numbers in the order colour, frame, row, column; patches have the order of
`PictureGrid`. Source: transformers 5.24, `models/qwen2_vl/image_processing_pil_qwen2_vl.py` and
`models/qwen3_vl/video_processing_qwen3_vl.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import COLOURS
from .grid import PictureError, PictureGrid
from .processor import PixelRules, Size
from .resample import resample


@dataclass(frozen=True)
class PicturePatches:
    """The patches of one picture and their grid. levels [patches, 3 * frames * patch * patch]
    uint8: colour levels, 0 to 255."""

    levels: Tensor
    grid: PictureGrid


def check_image(image: Tensor) -> None:
    """Raise PictureError unless the image is [height, width, 3] uint8 with at least one pixel."""
    shape = tuple(image.shape)
    if image.dtype != torch.uint8 or len(shape) != 3 or shape[2] != COLOURS or 0 in shape:
        raise PictureError(
            f"an image of shape {list(shape)}, {image.dtype} is not RGB; give [height, width, 3] "
            "uint8"
        )


def image_patches(image: Tensor, rules: PixelRules) -> PicturePatches:
    """Resize an image [height, width, 3] uint8 by the rules, and return its patches. Raises
    PictureError."""
    check_image(image)
    size = rules.size(Size(image.shape[0], image.shape[1]))
    resized = resample(image, size.height, size.width)
    return patches_of([resized] * rules.frames, rules)


def patches_of(frames: Sequence[Tensor], rules: PixelRules) -> PicturePatches:
    """Divide resized frames [height, width, 3] uint8 into patches, and return these. REQUIRES:
    there are rules.frames frames of equal size, in whole squares of patches."""
    height, width = frames[0].shape[:2]
    patch, merge = rules.patch, rules.merge
    grid = PictureGrid(height // patch, width // patch, merge)
    cut = torch.stack(tuple(frames)).reshape(
        len(frames), grid.token_rows, merge, patch, grid.token_columns, merge, patch, COLOURS
    )
    # Squares first, then patches in a square, then colour, frame, row and column.
    ordered = cut.permute(1, 4, 2, 5, 7, 0, 3, 6)
    return PicturePatches(ordered.reshape(grid.patches, -1), grid)


def normalised(levels: Tensor, rules: PixelRules) -> Tensor:
    """Return colour levels [patches, values] uint8 as numbers [patches, values] float32 for the
    tower.

    A number is (level / 255 - mean) / deviation, with the mean and deviation of its colour.
    """
    return looked_up(levels, level_numbers(rules).to(levels.device))


def level_numbers(rules: PixelRules) -> Tensor:
    """Return the number of each level by colour, [3, 256] float32 on the host. From one table, a
    level has the same number wherever it is computed."""
    mean, deviation = (
        torch.tensor(each, dtype=torch.float32)[:, None] for each in (rules.mean, rules.deviation)
    )
    every = torch.arange(256, dtype=torch.float64).mul(1 / 255).float()
    return (every - mean) / deviation


def looked_up(levels: Tensor, table: Tensor) -> Tensor:
    """Return levels [patches, values] uint8 as numbers of the table [3, 256], on its device and in
    its dtype."""
    coloured = levels.reshape(len(levels), COLOURS, -1).int()
    shift = 256 * torch.arange(COLOURS, dtype=torch.int32, device=levels.device)[:, None]
    return table.flatten()[(coloured + shift).flatten()].view(levels.shape)

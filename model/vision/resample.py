"""Bicubic resampling of 8-bit pictures, equal to Pillow's to the last bit, on any device.

An output pixel is a weighted sum of input pixels, along one axis, then along the other. Smaller
outputs widen the filter (antialias). Weights are rounded to 22 bits after the binary point, and
sums are integers. So a CPU and a GPU compute the same pixels, and so does Pillow. Source: Pillow
13, `src/libImaging/Resample.c`; its order of the axes is that of python-pillow/Pillow#9549. All
functions are pure.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SHARPNESS = -0.5
"""Free parameter of the cubic filter, often called a."""
_REACH = 2.0
"""Reach of the filter: number of pixels on each side of the centre with a weight, before
widening."""
_BITS = 22
"""Number of bits of a weight after the binary point."""
_ROWS_AT_ONCE = 64
"""Number of output rows computed at a time on a CPU, so that their sums stay in a core's cache."""
_DEVICE_SUMS = 2**22
"""Number of sums computed at a time on another device."""
MOST_DEVICE_BYTES = 4 * 4 * _DEVICE_SUMS
"""Most bytes of a resize on another device besides the pictures: sums, and inputs of a tap."""


@dataclass(frozen=True)
class Weights:
    """Resampling weights along one axis. index [taps, out] int64: input positions for each output;
    weight [taps, out] int32, in units of 2^-22. Positions without weight are clamped into the
    input."""

    index: Tensor
    weight: Tensor

    @staticmethod
    def of(count: int, wanted: int) -> "Weights":
        """Return the weights to resample `count` input pixels to `wanted` output pixels."""
        scale = count / wanted
        stretch = max(scale, 1.0)
        reach = _REACH * stretch
        centres = (np.arange(wanted) + 0.5) * scale
        first = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
        after = np.minimum((centres + reach + 0.5).astype(np.int64), count)
        taps = np.arange(math.ceil(reach) * 2 + 1)[:, None]
        values = _cubic((taps + first - centres + 0.5) * (1.0 / stretch))
        values = np.where(taps < after - first, values, 0.0)
        total = np.zeros(wanted)
        for tap in values:
            # One by one: the order of a sum changes its last bit.
            total += tap
        share = np.divide(values, total, out=values, where=total != 0)
        rounded = np.trunc(share * (1 << _BITS) + np.where(share < 0, -0.5, 0.5))
        return Weights(
            torch.from_numpy(np.minimum(taps + first, count - 1)),
            torch.from_numpy(rounded.astype(np.int32)),
        )

    def to(self, device: torch.device) -> "Weights":
        """Return the weights on another device."""
        return Weights(self.index.to(device), self.weight.to(device))


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cubic filter's value at each distance x from its centre."""
    a, x = _SHARPNESS, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def resample(image: Tensor, height: int, width: int) -> Tensor:
    """Return the image [H, W, 3] uint8 resized to [height, width, 3] uint8, on the same device. An
    axis of unchanged size is not filtered. REQUIRES: both sizes are positive."""
    if rows_first(image.shape[0], image.shape[1], height, width):
        return _across(_down(image, height), width)
    return _down(_across(image, width), height)


def rows_first(height: int, width: int, new_height: int, new_width: int) -> bool:
    """Return true if the height is resampled before the width. The order changes pixels, because
    levels are rounded in between. Pillow below 13 always begins with the width."""
    shrinks = new_height < height
    return shrinks and height - new_height > 2 * (width - new_width)


def _down(image: Tensor, height: int) -> Tensor:
    """Return the image with this height."""
    return image if image.shape[0] == height else _along_rows(image.contiguous(), height)


def _across(image: Tensor, width: int) -> Tensor:
    """Return the image with this width."""
    if image.shape[1] == width:
        return image
    turned = image.transpose(0, 1).contiguous()
    return _along_rows(turned, width).transpose(0, 1).contiguous()


def _along_rows(image: Tensor, wanted: int) -> Tensor:
    """Return the image with its first axis resized: [H, W, 3] to [wanted, W, 3], both uint8 and
    contiguous."""
    weights = Weights.of(image.shape[0], wanted).to(image.device)
    out = image.new_empty(wanted, *image.shape[1:])
    flat, flat_out = image.flatten(1), out.flatten(1)
    rows = _ROWS_AT_ONCE
    if image.device.type != "cpu":
        rows = max(1, _DEVICE_SUMS // flat.shape[1])
    for start in range(0, wanted, rows):
        part = slice(start, min(start + rows, wanted))
        flat_out[part] = _sums(flat, weights.index[:, part], weights.weight[:, part])
    return out


def _sums(rows: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sums [n, values] uint8 of image rows [H, values] uint8. index, weight
    [taps, n]: row numbers and weights for each sum."""
    half = 1 << (_BITS - 1)
    total = torch.full((index.shape[1], rows.shape[1]), half, dtype=torch.int32, device=rows.device)
    for places, share in zip(index, weight, strict=True):
        total.addcmul_(rows.index_select(0, places).int(), share[:, None])
    return (total >> _BITS).clamp_(0, 255).to(torch.uint8)

"""Encoded pictures to RGB: formats by name, bounds before pixels, orientation, transparency.

read_header reads a file's format and size, without its pixels. decode returns the pixels. Both are
pure functions of the bytes and of Pillow's version. Decoding may take any time within the bounds,
so untrusted bytes are decoded in a process of their own. Pillow is the optional extra `vision`, and
is imported at the first call.

Colours follow transformers 5.24: EXIF's orientation first, then transparency on white, then RGB.
The first frame of an animation is taken.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .grid import PictureError
from .processor import Size

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats served, by Pillow's names. No other decoder of Pillow is tried."""
_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})
"""Orientations that exchange height and width."""


class PillowMissing(RuntimeError):
    """Pillow is not installed."""

    def __init__(self) -> None:
        super().__init__("pictures need Pillow; install tasuki[vision]")


@dataclass(frozen=True)
class PictureBounds:
    """Bounds of an encoded picture. most_bytes: of the file; most_pixels: as sent."""

    most_bytes: int = 20 * 2**20
    most_pixels: int = 40_000_000


@dataclass(frozen=True)
class PictureHeader:
    """Facts of an encoded picture. format: one of FORMATS; size: upright."""

    format: str
    size: Size


def read_header(content: bytes, bounds: PictureBounds) -> PictureHeader:
    """Return the header of an encoded picture. No pixel is decoded. Raises PictureError,
    PillowMissing."""
    with _opened(content, bounds) as image:
        return _header(image)


def decode(content: bytes, bounds: PictureBounds) -> Tensor:
    """Return the pixels [height, width, 3] uint8. Raises PictureError, PillowMissing."""
    with _opened(content, bounds) as image:
        from PIL import ImageOps

        wanted = _header(image).size
        image.load()
        upright = ImageOps.exif_transpose(image)
        found = torch.from_numpy(np.array(_on_white(upright)))
        if Size(*found.shape[:2]) != wanted:
            raise PictureError(
                f"the picture has {found.shape[1]} x {found.shape[0]} pixels, its header says "
                f"{wanted.width} x {wanted.height}; send an undamaged file"
            )
        return found


@contextmanager
def _opened(content: bytes, bounds: PictureBounds) -> Iterator["Image"]:
    """Open a picture, checked against the bounds. Failures of Pillow become PictureError."""
    try:
        from PIL import Image
    except ImportError as error:
        raise PillowMissing from error
    if len(content) > bounds.most_bytes:
        raise PictureError(
            f"a picture has {len(content)} bytes, {bounds.most_bytes} are allowed; send a smaller "
            "file"
        )
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_size(Size(image.height, image.width), bounds)
            yield image
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"a picture is too large ({error}); send fewer pixels") from error
    except Exception as error:
        # Decoders of damaged files raise anything: OSError, SyntaxError, struct.error, KeyError.
        raise PictureError(
            f"a picture cannot be decoded ({type(error).__name__}: {error}); send "
            f"{', '.join(FORMATS)}"
        ) from error


def _check_size(size: Size, bounds: PictureBounds) -> None:
    if size.pixels > bounds.most_pixels:
        raise PictureError(
            f"a picture has {size.width} x {size.height} pixels, {bounds.most_pixels} are allowed; "
            "send a smaller one"
        )


def _header(image: "Image") -> PictureHeader:
    turned = image.getexif().get(_ORIENTATION) in _TURNED
    sides = (image.width, image.height) if turned else (image.height, image.width)
    return PictureHeader(str(image.format), Size(*sides))


def _on_white(image: "Image") -> "Image":
    """Return the image in RGB, transparent parts on white."""
    from PIL import Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")

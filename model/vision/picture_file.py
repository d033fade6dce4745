"""Decoding of picture files to RGB: only named formats, bounds checked before pixels, orientation,
transparency.

read_header reads a file's format and size, without its pixels. read_pixels returns the pixels,
decode the same as a tensor. All are pure functions of the bytes and of Pillow's version. Decoding
may take long even within the bounds, so untrusted bytes are decoded in a process of their own.
Pillow is the optional extra `vision`, and is imported at the first call. A front and a decoding
process have no torch, so decode alone imports it.

Colours follow transformers 5.24: EXIF's orientation first, then transparency on white, then RGB.
The first frame of an animation is decoded.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .grid import PictureError
from .processor import Size

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""The supported picture formats, by Pillow's names. No other decoder of Pillow is tried."""
_ORIENTATION = 0x0112
_TURNED = frozenset({5, 6, 7, 8})
"""EXIF orientations exchanging height and width."""
_PNG_SIGNATURE = 8
"""Number of bytes before a PNG file's first chunk."""
_PIXEL_CHUNKS = frozenset({b"IDAT", b"acTL", b"fcTL", b"fdAT"})
_NO_PIXELS = struct.pack(">I4sI", 0, b"IDAT", zlib.crc32(b"IDAT"))
_MOST_READS = 2**17
"""Largest number of reads of one file. Pillow reads a damaged header byte by byte, and so many
reads take a tenth of a second."""
_TOO_MANY = "a picture's file is in too many parts; save it again"


class OversizedPicture(PictureError):
    """A picture beyond its bounds of bytes or pixels."""


class PillowMissing(RuntimeError):
    """Error: Pillow is not installed."""

    def __init__(self) -> None:
        super().__init__("pictures need Pillow; install tasuki[vision]")


@dataclass(frozen=True)
class PictureBounds:
    """Bounds of a picture file. most_bytes: size of the file; most_pixels: number of pixels before
    any resize."""

    most_bytes: int = 20 * 2**20
    most_pixels: int = 40_000_000


@dataclass(frozen=True)
class PictureHeader:
    """Facts from a picture file's header. format: one of FORMATS; size: size in pixels after EXIF's
    orientation is applied."""

    format: str
    size: Size


def read_header(content: bytes, bounds: PictureBounds) -> PictureHeader:
    """Return a picture file's format and size, without decoding its pixels. Raises PictureError,
    PillowMissing."""
    with _opened(content, bounds) as image:
        return _header(image, content)


def decoder_version() -> str:
    """Return the decoder's name and version, or that it is missing. Two versions may differ by a
    level of a picture."""
    try:
        import PIL
    except ImportError:
        return "no Pillow"
    return f"Pillow {PIL.__version__}"


def decode(content: bytes, bounds: PictureBounds) -> "Tensor":
    """Return the pixels of read_pixels() as a tensor. Raises PictureError, PillowMissing."""
    import torch

    return torch.from_numpy(read_pixels(content, bounds).copy())


def read_pixels(content: bytes, bounds: PictureBounds) -> NDArray[np.uint8]:
    """Decode a picture file. Return its pixels [height, width, 3] uint8, upright and in RGB, on
    white if transparent. They may be read-only. Raises PictureError, PillowMissing."""
    with _opened(content, bounds) as image:
        from PIL import ImageOps

        wanted = _header(image, content).size
        image.load()
        # In place, and no copy of the array: three copies take as long as the file's decoding.
        ImageOps.exif_transpose(image, in_place=True)
        found = np.asarray(_on_white(image), dtype=np.uint8)
        if Size(*found.shape[:2]) != wanted:
            raise PictureError(
                f"the picture has {found.shape[1]} x {found.shape[0]} pixels, its header says "
                f"{wanted.width} x {wanted.height}; send an undamaged file"
            )
        return found


class _CountedFile(io.BytesIO):
    """A file in memory with a limited number of reads. A further read raises PictureError."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise PictureError(_TOO_MANY)
        return super().read(size)


@contextmanager
def _opened(content: bytes, bounds: PictureBounds) -> Iterator["Image"]:
    """Open a picture file with Pillow, and check its bounds. Failures of Pillow become
    PictureError."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise PillowMissing from error
    if len(content) > bounds.most_bytes:
        raise OversizedPicture(
            f"a picture has {len(content)} bytes, {bounds.most_bytes} are allowed; send a smaller "
            "file"
        )
    try:
        with Image.open(_CountedFile(content), formats=FORMATS) as image:
            _check_size(Size(image.height, image.width), bounds)
            yield image
    except PictureError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise OversizedPicture(f"a picture is too large ({error}); send fewer pixels") from error
    except UnidentifiedImageError as error:
        raise PictureError(f"a file is no picture; send {', '.join(FORMATS)}") from error
    except Exception as error:
        # Decoders of damaged files raise anything: OSError, SyntaxError, struct.error, KeyError.
        raise PictureError(
            f"a picture cannot be decoded ({type(error).__name__}: {error}); send "
            f"{', '.join(FORMATS)}"
        ) from error


def _check_size(size: Size, bounds: PictureBounds) -> None:
    if size.pixels > bounds.most_pixels:
        raise OversizedPicture(
            f"a picture has {size.width} x {size.height} pixels, {bounds.most_pixels} are allowed; "
            "send a smaller one"
        )


def _header(image: "Image", content: bytes) -> PictureHeader:
    turned = _orientation(image, content) in _TURNED
    sides = (image.width, image.height) if turned else (image.height, image.width)
    # A JPEG file of several pictures has a name of its own in Pillow.
    name = "JPEG" if image.format == "MPO" else str(image.format)
    return PictureHeader(name, Size(*sides))


def _orientation(image: "Image", content: bytes) -> int | None:
    """Return the file's EXIF orientation, without decoding pixels; None if the file has none."""
    from PIL import Image

    if image.format != "PNG":
        found = image.getexif()
    else:
        # PNG may have it behind the pixels, and Pillow then decodes them first.
        with Image.open(_CountedFile(_facts_first(content)), formats=("PNG",)) as facts:
            found = Image.Image.getexif(facts)
    orientation = found.get(_ORIENTATION)
    return orientation if isinstance(orientation, int) else None


def _facts_first(content: bytes) -> bytes:
    """Return a PNG file without its chunks of pixels and frames, with an empty chunk of pixels at
    the end. Raises PictureError for too many chunks."""
    kept = [content[:_PNG_SIGNATURE]]
    place = _PNG_SIGNATURE
    for _ in range(_MOST_READS):
        name = content[place + 4 : place + 8]
        end = place + 12 + int.from_bytes(content[place : place + 4], "big")
        if name in (b"IEND", b"") or end > len(content):
            return b"".join((*kept, _NO_PIXELS))
        if name not in _PIXEL_CHUNKS:
            kept.append(content[place:end])
        place = end
    raise PictureError(_TOO_MANY)


def _on_white(image: "Image") -> "Image":
    """Return the image in RGB, with transparent parts on white."""
    from PIL import Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")

"""One picture as a client sent it, and the bounds of a request's pictures.

SentPicture is the neutral value of all APIs: data, detail, place in the request. Its kind of file
is found by content, because names and declared types lie. Plain values, any thread.
"""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from tasuki.model.vision.picture_file import FORMATS, PictureBounds
from tasuki.model.vision.processor import MOST_SHOWN_PIXELS
from tasuki.server.errors import InvalidField

from .encoded_bytes import Base64

SERVED = ", ".join(FORMATS)
"""Served formats, for errors."""

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
)
"""First bytes of served files: offset, bytes, media type."""
_OTHERS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"%PDF-", "a PDF file"),
    (0, b"BM", "a BMP file"),
    (0, b"II*\0", "a TIFF file"),
    (0, b"MM\0*", "a TIFF file"),
    (4, b"ftyp", "an AVIF, HEIC or video file"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"<svg", "an SVG file"),
    (0, b"<?xml", "an SVG file"),
)


class Detail(StrEnum):
    """Resolution asked for. LOW: at most 512 x 512 pixels. The others: the processor's limits."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"
    ORIGINAL = "original"


@dataclass(frozen=True)
class PictureLimits:
    """Bounds of one request. each: of one picture as sent. most_pictures, most_pixels: of all
    together. shown_pixels: of one after its resize, if the processor allows more."""

    each: PictureBounds = field(default_factory=PictureBounds)
    most_pictures: int = 64
    most_pixels: int = 256_000_000
    shown_pixels: int = MOST_SHOWN_PIXELS


@dataclass(frozen=True)
class SentPicture:
    """A picture with its place and detail. place: position of its part in the request. data: the
    encoded file, or its base64."""

    place: str
    data: bytes | Base64
    detail: Detail = Detail.AUTO

    @property
    def size(self) -> int:
        """Return the bytes of the data as sent."""
        return len(self.data) if isinstance(self.data, bytes) else len(self.data.text)

    @cached_property
    def name(self) -> bytes:
        """Return a digest of the data as sent. Equal names have equal content."""
        kind, data = (b"f", self.data) if isinstance(self.data, bytes) else (b"t", self.data.text)
        found = hashlib.sha256(kind)
        found.update(data)
        return found.digest()

    @cached_property
    def content(self) -> bytes:
        """Return the encoded file, such as a PNG, without base64. Raises InvalidField,
        PictureTooLarge."""
        return self.data if isinstance(self.data, bytes) else self.data.decoded()


def media_type(content: bytes, place: str) -> str:
    """Return the media type of a served file, by its first bytes. place: for errors. Raises
    InvalidField for any other content."""
    for offset, begin, name in _SIGNATURES:
        if content.startswith(begin, offset):
            return name
    for offset, begin, name in _OTHERS:
        if content.startswith(begin, offset):
            raise InvalidField(place, f"holds {name}: send a picture as {SERVED}")
    raise InvalidField(place, f"holds no known picture: send {SERVED}")


def read_detail(value: object, place: str) -> Detail:
    """Return the detail of a part; AUTO for null. Raises InvalidField."""
    if value is None:
        return Detail.AUTO
    if not isinstance(value, str) or value not in list(Detail):
        raise InvalidField(place, f"must be one of {', '.join(Detail)}")
    return Detail(value)

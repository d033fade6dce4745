"""Messages between a client of decoding and its worker process. Immutable values.

A message is one datagram of MessagePack. A DecodeJob comes with two descriptors: the encoded bytes,
and memory for the pixels. Each job gets one DecodeReply.
"""

import math
from enum import StrEnum

import msgspec

from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import Size

MOST_MESSAGE_BYTES = 4 << 10
MOST_REASON = 300
"""Characters of a reason. It may repeat some of a file's text."""


class DecodeBounds(msgspec.Struct, frozen=True):
    """Bounds of one decoding. cpu_seconds: processor time of the largest picture; 40 million pixels
    of WebP take two. least_seconds, megapixel_seconds: processor time of any picture, and more for
    each million pixels of its header. So slow small files hold a decoder for three seconds.
    wait_seconds: of the clock, since children have the lowest priority."""

    cpu_seconds: int = 10
    wait_seconds: float = 30.0
    least_seconds: float = 2.0
    megapixel_seconds: float = 0.2

    def seconds(self, pixels: int) -> int:
        """Return the processor time of a picture with so many pixels."""
        own = self.least_seconds + self.megapixel_seconds * pixels / 1e6
        return min(self.cpu_seconds, math.ceil(own))


class DecodeJob(msgspec.Struct, frozen=True):
    """A picture to decode. height, width: upright, by its header. most_bytes, most_pixels: bounds
    of the encoded picture. cost: bounds of its decoding."""

    height: int
    width: int
    most_bytes: int
    most_pixels: int
    cost: DecodeBounds = DecodeBounds()

    @property
    def size(self) -> Size:
        return Size(self.height, self.width)

    @property
    def bounds(self) -> PictureBounds:
        return PictureBounds(self.most_bytes, self.most_pixels)


class Outcome(StrEnum):
    """Outcome of a job. DECODED: the pixels are in the memory. REFUSED: the file is damaged, or
    decoding costs too much. LOST: its process was ended from outside, or had too little time.
    UNAVAILABLE: Pillow is missing."""

    DECODED = "decoded"
    REFUSED = "refused"
    LOST = "lost"
    UNAVAILABLE = "unavailable"


class DecodeReply(msgspec.Struct, frozen=True):
    """Result of one job. reason: empty if the picture was decoded."""

    outcome: Outcome
    reason: str = ""

"""Messages between a client of decoding and its worker process. Immutable values.

A message is one datagram of MessagePack. A DecodeJob comes with two descriptors: the encoded bytes,
and memory for the pixels. Each job gets one DecodeReply.
"""

from enum import StrEnum

import msgspec

from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import Size

MOST_MESSAGE_BYTES = 4 << 10
MOST_REASON = 300
"""Characters of a reason. It may repeat some of a file's text."""


class DecodeBounds(msgspec.Struct, frozen=True):
    """Bounds of one decoding. cpu_seconds: processor time; 40 million pixels of WebP take two.
    wait_seconds: of the clock, since children have the lowest priority."""

    cpu_seconds: int = 10
    wait_seconds: float = 30.0


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

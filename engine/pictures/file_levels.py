"""Patches of pictures that came as files, decoded in bounded processes.

FileLevels begins a decode when the encoder needs it, so a picture whose rows are known is never
decoded. Base64, decoding and the resize run on threads of the decoders. It owns the decoders, whose
processes start with the first picture. Thread rule: any; nothing waits.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.engine import messages as m
from tasuki.model.vision.decoding.decoders import (
    DecoderLost,
    DecodersBusy,
    DecodersMissing,
    PictureDecoders,
    Pixels,
)
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.pixels import patches_of
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.model.vision.resample import resample

from .placed import PlacedPicture

Levels = NDArray[np.uint8]
"""Patches of a picture, [patches, values] uint8."""


@dataclass(frozen=True)
class ReadPicture:
    """A picture's patches, and the seconds of their stages. A wait for a decoder is not counted.
    began: time of the decoder's begin, on the clock of perf_counter; 0 without one."""

    levels: Levels
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    began: float = 0.0


class PictureGone(Exception):
    """A picture's rows must be computed, and its file is no longer held."""


class FileLevels:
    def __init__(
        self,
        rules: PixelRules,
        bounds: PictureBounds | None = None,
        decoders: PictureDecoders | None = None,
    ) -> None:
        """rules: the tower's. bounds: of a file; None: the defaults, as for decoders."""
        self._rules = rules
        self._bounds = PictureBounds() if bounds is None else bounds
        self._decoders = PictureDecoders() if decoders is None else decoders

    @property
    def decoders_lost(self) -> int:
        """Return the number of decoding processes lost so far."""
        return self._decoders.lost

    def begin(self, line: str, picture: PlacedPicture) -> "Future[ReadPicture] | None":
        """Begin to read a picture's patches from its file; None if too many pictures wait. line:
        of its caller. REQUIRES: the picture has a file."""
        file = picture.file
        assert file is not None
        if file.coding is m.FileCoding.GONE:
            gone: Future[ReadPicture] = Future()
            gone.set_exception(PictureGone())
            return gone
        target = Size(
            picture.grid.rows * self._rules.patch, picture.grid.columns * self._rules.patch
        )

        began = 0.0

        def content() -> bytes:
            nonlocal began
            began = time.perf_counter()
            return file.content()

        def patches(pixels: Pixels) -> ReadPicture:
            decoded = time.perf_counter()
            resized = resample(torch.from_numpy(pixels), target.height, target.width)
            levels: Levels = patches_of([resized] * self._rules.frames, self._rules).levels.numpy()
            return ReadPicture(levels, decoded - began, time.perf_counter() - decoded, began)

        sent = Size(file.height, file.width)
        try:
            return self._decoders.decode_and(line, content, sent, self._bounds, patches)
        except DecodersBusy:
            return None

    def close(self) -> None:
        """End the decoders' processes."""
        self._decoders.close()


def unreadable(picture: PlacedPicture, error: BaseException) -> m.RequestError:
    """Return the error of a request whose picture cannot be read. error: its future's."""
    place = "a picture" if picture.file is None else picture.file.place
    match error:
        case PictureGone():
            return m.RequestError(
                m.ErrorKind.PICTURE_GONE,
                f"{place} must be computed again, and its file was dropped: open the session again "
                "with its messages, or raise --session-pictures-mib",
            )
        case DecoderLost() | DecodersBusy():
            return m.RequestError(m.ErrorKind.OVERLOADED, f"{place} was not decoded: {error}")
        case DecodersMissing():
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error}")
        case ValueError():
            return m.RequestError(m.ErrorKind.INVALID, f"{place} is refused: {error!s:.300}")
        case _:
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error!r:.300}")

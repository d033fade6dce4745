"""Patches of pictures that came as files, decoded in bounded processes.

FileLevels begins a decode when the encoder needs it, so a picture whose rows are known is never
decoded. Base64, decoding and the resize run on threads of the decoders. It owns the decoders, whose
processes start with the first picture. Thread rule: any; nothing waits.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.engine import messages as m
from tasuki.model.vision.decoding.decoders import (
    DecoderLost,
    DecodersBusy,
    DecodersMissing,
    EncodedPicture,
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

    def begin(self, line: str, picture: PlacedPicture) -> "Future[Levels] | None":
        """Begin to read a picture's patches from its file; None if too many pictures wait. line:
        of its caller. REQUIRES: the picture has a file."""
        files = picture.files
        assert files
        target = Size(
            picture.grid.rows * self._rules.patch, picture.grid.columns * self._rules.patch
        )

        def resized(pixels: Pixels) -> Tensor:
            return resample(torch.from_numpy(pixels), target.height, target.width)

        def patches(frames: Sequence[Tensor]) -> Levels:
            # An image is all frames of a picture, and so is an odd last frame.
            repeated = [*frames, *repeat(frames[-1], self._rules.frames - len(frames))]
            levels: Levels = patches_of(repeated, self._rules).levels.numpy()
            return levels

        encoded = [
            EncodedPicture(file.content, Size(file.height, file.width), len(file.data))
            for file in files
        ]
        try:
            return self._decoders.decode_each(line, encoded, self._bounds, resized, patches)
        except DecodersBusy:
            return None

    def close(self) -> None:
        """End the decoders' processes."""
        self._decoders.close()


def unreadable(picture: PlacedPicture, error: BaseException) -> m.RequestError:
    """Return the error of a request whose picture cannot be read. error: its future's."""
    place = "a picture" if picture.file is None else picture.file.place
    match error:
        case DecoderLost() | DecodersBusy():
            return m.RequestError(m.ErrorKind.OVERLOADED, f"{place} was not decoded: {error}")
        case DecodersMissing():
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error}")
        case ValueError():
            return m.RequestError(m.ErrorKind.INVALID, f"{place} is refused: {error!s:.300}")
        case _:
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error!r:.300}")

"""Patches of pictures that came as files, decoded in bounded processes.

FileLevels begins a decode when the encoder needs it, so a picture whose rows are known is never
decoded. Base64, decoding and the resize run on threads of the decoders. It owns the decoders, whose
processes start with the first picture. Thread rule: any; nothing waits.

On a GPU the resize and the order of patches are the device's, in a stream beside the forwards. Only
the decoders' threads wait for that stream.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch
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
from tasuki.model.vision.resample import MOST_DEVICE_BYTES, resample
from tasuki.model.vision.tower import moved

from .placed import PlacedPicture
from .row_store import RowsGone

Levels = Tensor
"""Patches of a picture, [patches, values] uint8, on the device of the tower or on the host."""

MOST_DECODED_AHEAD = 6
"""Largest number of pictures with decoded pixels in memory."""
MOST_OF_A_CALLER = 4
"""The same of one caller: slow files of one do not hold back others'."""
_DECODERS = 2
"""Pictures decoded at the same time."""
_MOST_RAW_BYTES = 32 * 2**20
"""A larger picture is resized on the host, so that the device needs no memory for its pixels."""


@dataclass(frozen=True)
class DeviceBytes:
    """Memory on a GPU for the pixels of pictures decoded ahead, in bytes. levels: their patches.
    resizes: pixels before and between the axes of a resize, and its sums."""

    levels: int
    resizes: int

    @property
    def total(self) -> int:
        return self.levels + self.resizes

    @staticmethod
    def of(levels: int) -> "DeviceBytes":
        """Return the memory for pictures of at most `levels` bytes of patches each."""
        resize = 2 * _MOST_RAW_BYTES + levels + MOST_DEVICE_BYTES
        return DeviceBytes(MOST_DECODED_AHEAD * levels, _DECODERS * resize)


@dataclass(frozen=True)
class ReadPicture:
    """A picture's patches, and the seconds of their stages. A wait for a decoder is not counted.
    began: time of the decoder's begin, on the clock of perf_counter; 0 without one."""

    levels: Levels
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    began: float = 0.0


class _Reading:
    """The times of one picture's stages. One of the decoders' threads."""

    def __init__(self) -> None:
        self._began = 0.0
        self._last = 0.0
        self._decode_seconds = self._resize_seconds = 0.0

    def content(self, file: m.PictureFile) -> bytes:
        """Return a file's content, as the begin of its decoding."""
        self._last = time.perf_counter()
        self._began = self._began or self._last
        return file.content()

    def decoded(self) -> None:
        self._decode_seconds += self._lap()

    def resized(self) -> None:
        self._resize_seconds += self._lap()

    def ended(self, levels: Levels) -> ReadPicture:
        return ReadPicture(levels, self._decode_seconds, self._resize_seconds, self._began)

    def _lap(self) -> float:
        now, before = time.perf_counter(), self._last
        self._last = now
        return now - before


class PictureGone(Exception):
    """A picture's rows must be computed, and its file is no longer held."""


class FileLevels:
    def __init__(
        self,
        rules: PixelRules,
        bounds: PictureBounds | None = None,
        decoders: PictureDecoders | None = None,
        device: torch.device | None = None,
    ) -> None:
        """rules: the tower's. bounds: of a file; None: the defaults, as for decoders. device: the
        tower's; None: the host."""
        self._rules = rules
        self._bounds = PictureBounds() if bounds is None else bounds
        self._decoders = PictureDecoders() if decoders is None else decoders
        self._device = torch.device("cpu") if device is None else device
        on_gpu = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if on_gpu else None  # type: ignore[no-untyped-call]

    @property
    def decoders_lost(self) -> int:
        """Return the number of decoding processes lost so far."""
        return self._decoders.lost

    def begin(self, line: str, picture: PlacedPicture) -> "Future[ReadPicture] | None":
        """Begin to read a picture's patches from its file; None if too many pictures wait. line:
        of its caller. REQUIRES: the picture has a file."""
        files = picture.files
        assert files
        if any(file.coding is m.FileCoding.GONE for file in files):
            gone: Future[ReadPicture] = Future()
            gone.set_exception(PictureGone())
            return gone
        target = Size(
            picture.grid.rows * self._rules.patch, picture.grid.columns * self._rules.patch
        )
        reading = _Reading()

        def frame(pixels: Pixels) -> Tensor:
            reading.decoded()
            resized = self._resized(torch.from_numpy(pixels), target)
            reading.resized()
            return resized

        def patches(frames: Sequence[Tensor]) -> ReadPicture:
            levels = self._patches(frames)
            reading.resized()
            return reading.ended(levels)

        encoded = [
            EncodedPicture(
                partial(reading.content, file), Size(file.height, file.width), len(file.data)
            )
            for file in files
        ]
        try:
            return self._decoders.decode_each(line, encoded, self._bounds, frame, patches)
        except DecodersBusy:
            return None

    def _resized(self, image: Tensor, target: Size) -> Tensor:
        """Return a frame [height, width, 3] resized to the target; a large one on the host."""
        if self._stream is None or image.nbytes > _MOST_RAW_BYTES:
            return resample(image, target.height, target.width)
        with torch.cuda.stream(self._stream):
            resized = resample(moved(image, self._device), target.height, target.width)
            self._stream.synchronize()
            return resized

    def _patches(self, frames: Sequence[Tensor]) -> Levels:
        """Return the patches of resized frames. On a GPU they are complete there, or pinned on the
        host."""
        # An image is all frames of a picture, and so is an odd last frame.
        repeated = [*frames, *repeat(frames[-1], self._rules.frames - len(frames))]
        if self._stream is None:
            return patches_of(repeated, self._rules).levels
        with torch.cuda.stream(self._stream):
            levels = patches_of(repeated, self._rules).levels
            if not levels.is_cuda:
                return levels.pin_memory()
            self._stream.synchronize()
            return levels

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
        case RowsGone():
            return m.RequestError(m.ErrorKind.OVERLOADED, f"{place} cannot be computed: {error}")
        case DecodersMissing():
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error}")
        case ValueError():
            return m.RequestError(m.ErrorKind.INVALID, f"{place} is refused: {error!s:.300}")
        case _:
            return m.RequestError(m.ErrorKind.INTERNAL, f"{place} was not decoded: {error!r:.300}")

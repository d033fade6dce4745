"""Patches of pictures that came as files, decoded in bounded processes.

FileLevels begins a decode when the encoder needs it, so a picture whose rows are known is never
decoded. Base64, decoding and the resize run on threads of the decoders. It owns the decoders, whose
processes start with the first picture. Thread rule: any; nothing waits.

On a GPU the resize and the order of patches are the device's, in a stream beside the forwards. Only
the decoders' threads wait for that stream.
"""

import time
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor

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
from tasuki.model.vision.resample import MOST_DEVICE_BYTES, resample
from tasuki.model.vision.tower import moved

from .placed import PlacedPicture

Levels = Tensor
"""Patches of a picture, [patches, values] uint8, on the device of the tower or on the host."""

MOST_DECODED_AHEAD = 4
"""Largest number of pictures with decoded pixels in memory."""
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
            levels = self._patches(torch.from_numpy(pixels), target)
            return ReadPicture(levels, decoded - began, time.perf_counter() - decoded, began)

        sent = Size(file.height, file.width)
        try:
            return self._decoders.decode_and(line, content, sent, self._bounds, patches)
        except DecodersBusy:
            return None

    def _patches(self, image: Tensor, target: Size) -> Levels:
        """Return the patches of an image [height, width, 3], resized to the target. On a GPU they
        are complete there, or pinned on the host."""
        if self._stream is None:
            return self._resized(image, target)
        with torch.cuda.stream(self._stream):
            if image.nbytes > _MOST_RAW_BYTES:
                return self._resized(image, target).pin_memory()
            levels = self._resized(moved(image, self._device), target)
            self._stream.synchronize()
            return levels

    def _resized(self, image: Tensor, target: Size) -> Levels:
        resized = resample(image, target.height, target.width)
        return patches_of([resized] * self._rules.frames, self._rules).levels

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

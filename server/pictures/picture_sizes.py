"""Sizes of a request's pictures: digests, headers, grids, and a cache of the first two.

A picture's grid of tokens follows from its header, its detail and the checkpoint's processor. No
pixel is decoded. Agents send the same pictures each turn. A known one costs a digest of its text,
without base64. Pictures are known under their salt: otherwise the time of an answer would reveal
that another tenant sent the same one.

PictureSizes owns the cache. Any thread. The cost of a picture is bounded by its file's length.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.model.vision.grid import PictureError, PictureGrid
from tasuki.model.vision.picture_file import (
    OversizedPicture,
    PictureHeader,
    PillowMissing,
    read_header,
)
from tasuki.model.vision.processor import ClipRules, PixelRules, Size
from tasuki.server.errors import InvalidField, NotServedHere, PictureTooLarge
from tasuki.utils.bounded_cache import BoundedCache

from .sent_picture import Detail, PictureLimits, SentPicture, media_type

_CACHE_BYTES = 4 << 20
"""Bytes for some ten thousand pictures."""
_KNOWN_BYTES = 300
LOW_PIXELS = 512 * 512
"""Largest number of pixels of a picture of low detail after its resize."""


@dataclass(frozen=True)
class KnownFile:
    """A file's digest, and its size and format by its header."""

    sha256: bytes
    header: PictureHeader


@dataclass(frozen=True)
class MeasuredPicture:
    """A picture with its grid. files: of its frames as sent; one of an image. size: pixels after
    the resize."""

    sent: SentPicture
    files: tuple[KnownFile, ...]
    size: Size
    grid: PictureGrid

    @property
    def tokens(self) -> int:
        """Return the number of its placeholders in a prompt."""
        return self.grid.tokens


class PictureSizes:
    def __init__(
        self,
        rules: PixelRules,
        limits: PictureLimits,
        cache_bytes: int = _CACHE_BYTES,
        clip: ClipRules | None = None,
    ) -> None:
        """rules: the checkpoint's rules for sizes. limits: bounds of one request. cache_bytes:
        bound of the cache of pictures. clip: the checkpoint's rules for clips; None: it has
        none."""
        self.limits = limits
        self._rules = {detail: rules.limited(_shown(detail, limits)) for detail in Detail}
        self._clip = {
            detail: None if clip is None else clip.limited(_shown(detail, limits))
            for detail in Detail
        }
        self._remembered: BoundedCache[tuple[bytes, bytes], KnownFile] = BoundedCache(cache_bytes)

    def rules(self, detail: Detail) -> PixelRules:
        """Return the rules for sizes at a detail. A picture's pixels must follow the same rules
        later."""
        return self._rules[detail]

    def measured(self, salt: bytes, sent: Sequence[SentPicture]) -> tuple[MeasuredPicture, ...]:
        """Return the pictures of one request with their grids. salt: cache salt of its prompt.
        Raises InvalidField and PictureTooLarge, by the picture's place; NotServedHere without
        Pillow."""
        found: list[MeasuredPicture] = []
        left = self.limits.most_pixels
        for picture in sent:
            measured = self._measured(salt, picture)
            left -= sum(file.header.size.pixels for file in measured.files)
            if left < 0:
                raise PictureTooLarge(
                    picture.place,
                    f"brings the request above {self.limits.most_pixels} pixels: send fewer or "
                    "smaller pictures",
                )
            if picture.pair is not None and picture.pair.index:
                _check_equal(picture, found[-1].files[0], measured.files[0])
            found.append(measured)
        return tuple(found)

    def _measured(self, salt: bytes, picture: SentPicture) -> MeasuredPicture:
        files = tuple(self._known(salt, frame) for frame in picture.frames)
        given, rules = files[0].header.size, self._rules[picture.detail]
        try:
            size = rules.size(given) if picture.pair is None else self._frame_size(picture, given)
        except PictureError as error:
            raise InvalidField(picture.place, f"is refused: {error!s:.200}") from error
        for frame, file in zip(picture.frames[1:], files[1:], strict=True):
            _check_equal(frame, files[0], file)
        return MeasuredPicture(picture, files, size, rules.grid_of(size))

    def _frame_size(self, picture: SentPicture, given: Size) -> Size:
        """Return the size of a clip's frames after the resize. Raises PictureError."""
        clip, pair = self._clip[picture.detail], picture.pair
        assert pair is not None
        if clip is None:
            raise PictureError("the model has no video_preprocessor_config.json; send pictures")
        return clip.size(pair.frames, given, self._rules[picture.detail])

    def _known(self, salt: bytes, picture: SentPicture) -> KnownFile:
        key = (salt, picture.name)
        known = self._remembered.get(key)
        if known is None:
            known = self._read(picture)
            self._remembered.put(key, known, len(salt) + len(picture.name) + _KNOWN_BYTES)
        return known

    def _read(self, picture: SentPicture) -> KnownFile:
        """Decode a picture's text and read its header."""
        content = picture.content
        # Pillow would name no other kind of file.
        media_type(content, picture.place)
        try:
            header = read_header(content, self.limits.each)
        except PillowMissing as error:
            raise NotServedHere(f"this node reads no pictures: {error}") from error
        except OversizedPicture as error:
            raise PictureTooLarge(picture.place, f"is refused: {error!s:.200}") from error
        except PictureError as error:
            raise InvalidField(picture.place, f"is refused: {error!s:.200}") from error
        return KnownFile(hashlib.sha256(content).digest(), header)


def _shown(detail: Detail, limits: PictureLimits) -> int:
    """Return the largest number of pixels after the resize, at a detail."""
    return min(limits.shown_pixels, LOW_PIXELS) if detail is Detail.LOW else limits.shown_pixels


def _check_equal(frame: SentPicture, before: KnownFile, own: KnownFile) -> None:
    """Raise InvalidField if a frame has another size than the one before it."""
    size, wanted = own.header.size, before.header.size
    if size != wanted:
        raise InvalidField(
            frame.place,
            f"has {size.width} x {size.height} pixels, the frame before it {wanted.width} x "
            f"{wanted.height}: send frames of one size",
        )

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
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.server.errors import InvalidField, NotServedHere, PictureTooLarge
from tasuki.utils.bounded_cache import BoundedCache

from .sent_picture import Detail, PictureLimits, SentPicture, media_type

_CACHE_BYTES = 4 << 20
"""Bytes for some ten thousand pictures."""
_KNOWN_BYTES = 300
LOW_PIXELS = 512 * 512
"""Largest number of pixels of a picture of low detail after its resize."""


@dataclass(frozen=True)
class MeasuredPicture:
    """A picture with its grid. sha256: of its content. header: its format and its size before the
    resize. size: pixels after the resize."""

    sent: SentPicture
    sha256: bytes
    header: PictureHeader
    size: Size
    grid: PictureGrid

    @property
    def tokens(self) -> int:
        """Return the number of its placeholders in a prompt."""
        return self.grid.tokens


@dataclass(frozen=True)
class _Known:
    sha256: bytes
    header: PictureHeader


class PictureSizes:
    def __init__(
        self, rules: PixelRules, limits: PictureLimits, cache_bytes: int = _CACHE_BYTES
    ) -> None:
        """rules: the checkpoint's rules for sizes. limits: bounds of one request. cache_bytes:
        bound of the cache of pictures."""
        self.limits = limits
        usual = rules.limited(limits.shown_pixels)
        self._rules = {detail: usual for detail in Detail}
        self._rules[Detail.LOW] = usual.limited(LOW_PIXELS)
        self._remembered: BoundedCache[tuple[bytes, bytes], _Known] = BoundedCache(cache_bytes)

    def rules(self, detail: Detail) -> PixelRules:
        """Return the rules for sizes at a detail. A picture's pixels must follow the same rules
        later."""
        return self._rules[detail]

    def measured(self, salt: bytes, sent: Sequence[SentPicture]) -> tuple[MeasuredPicture, ...]:
        """Return the pictures of one request with their grids. salt: cache salt of its prompt.
        Raises InvalidField and PictureTooLarge, by the picture's place; NotServedHere without
        Pillow."""
        found = []
        left = self.limits.most_pixels
        for picture in sent:
            measured = self._measured(salt, picture)
            left -= measured.header.size.pixels
            if left < 0:
                raise PictureTooLarge(
                    picture.place,
                    f"brings the request above {self.limits.most_pixels} pixels: send fewer or "
                    "smaller pictures",
                )
            found.append(measured)
        return tuple(found)

    def _measured(self, salt: bytes, picture: SentPicture) -> MeasuredPicture:
        known, rules = self._known(salt, picture), self._rules[picture.detail]
        try:
            size, grid = rules.size(known.header.size), rules.grid(known.header.size)
        except PictureError as error:
            raise InvalidField(picture.place, f"is refused: {error!s:.200}") from error
        return MeasuredPicture(picture, known.sha256, known.header, size, grid)

    def _known(self, salt: bytes, picture: SentPicture) -> _Known:
        key = (salt, picture.name)
        known = self._remembered.get(key)
        if known is None:
            known = self._read(picture)
            self._remembered.put(key, known, len(salt) + len(picture.name) + _KNOWN_BYTES)
        return known

    def _read(self, picture: SentPicture) -> _Known:
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
        return _Known(hashlib.sha256(content).digest(), header)

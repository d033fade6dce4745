"""Sizes of a request's pictures: headers, grids, and a cache of headers.

A picture's grid of tokens follows from its header, its detail and the checkpoint's processor. No
pixel is decoded. Agents send the same pictures each turn, so headers are remembered, by the digest
of their bytes. They are remembered under the salt: otherwise the time of an answer would reveal
that another tenant sent the same picture.

PictureSizes owns the cache. Any thread. A header's cost is bounded by its file's length.
"""

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

from .sent_picture import Detail, PictureLimits, SentPicture

_CACHE_BYTES = 4 << 20
"""Bytes for some ten thousand headers."""
_HEADER_BYTES = 200
LOW_PIXELS = 512 * 512
"""Pixels of a picture of low detail after its resize."""


@dataclass(frozen=True)
class MeasuredPicture:
    """A picture with its grid. size: pixels after the resize."""

    sent: SentPicture
    header: PictureHeader
    size: Size
    grid: PictureGrid

    @property
    def tokens(self) -> int:
        """Return its placeholders in a prompt."""
        return self.grid.tokens


class PictureSizes:
    def __init__(
        self, rules: PixelRules, limits: PictureLimits, cache_bytes: int = _CACHE_BYTES
    ) -> None:
        """rules: the checkpoint's. cache_bytes: bound of the headers remembered."""
        self.limits = limits
        usual = rules.limited(limits.shown_pixels)
        self._rules = {detail: usual for detail in Detail}
        self._rules[Detail.LOW] = usual.limited(LOW_PIXELS)
        self._headers: BoundedCache[tuple[bytes, bytes], PictureHeader] = BoundedCache(cache_bytes)

    def rules(self, detail: Detail) -> PixelRules:
        """Return the rules of a detail. A picture's pixels must follow the same ones later."""
        return self._rules[detail]

    def measured(self, salt: bytes, sent: Sequence[SentPicture]) -> tuple[MeasuredPicture, ...]:
        """Return the pictures of one request with their grids. salt: of its prompt. Raises
        InvalidField and PictureTooLarge, by the picture's place; NotServedHere without Pillow."""
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
        header, rules = self._header(salt, picture), self._rules[picture.detail]
        try:
            size, grid = rules.size(header.size), rules.grid(header.size)
        except PictureError as error:
            raise InvalidField(picture.place, f"is refused: {error!s:.200}") from error
        return MeasuredPicture(picture, header, size, grid)

    def _header(self, salt: bytes, picture: SentPicture) -> PictureHeader:
        key = (salt, picture.sha256)
        known = self._headers.get(key)
        if known is not None:
            return known
        try:
            header = read_header(picture.content, self.limits.each)
        except PillowMissing as error:
            raise NotServedHere(f"this node reads no pictures: {error}") from error
        except OversizedPicture as error:
            raise PictureTooLarge(picture.place, f"is refused: {error!s:.200}") from error
        except PictureError as error:
            raise InvalidField(picture.place, f"is refused: {error!s:.200}") from error
        self._headers.put(key, header, len(salt) + len(picture.sha256) + _HEADER_BYTES)
        return header

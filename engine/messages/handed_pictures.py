"""Messages about pictures of a prompt computed on another node.

The decode node names the pictures in its request. The prefill node asks for the files of those with
missing rows.
"""

from collections.abc import Mapping
from dataclasses import field

from tasuki.pycache.keys import PictureDigest, PictureSource

from .types import Message, TransferId

MOST_PICTURES = 1024
"""Most pictures of a prompt, of any size."""


class FileIdentity(Message):
    """An encoded picture before its bytes are known. sha256: of the bytes. height, width: upright
    pixels, by its header."""

    sha256: bytes
    height: int
    width: int


class HandedPicture(Message):
    """A picture in another node's prompt. start: index of its first placeholder. rows, columns: of
    its tokens. kind, orientation: as in PictureSource. digest: names its content and size. files:
    one of an image, two of a pair of frames, one of a doubled frame."""

    start: int
    rows: int
    columns: int
    kind: str
    orientation: str
    digest: PictureDigest
    files: tuple[FileIdentity, ...]

    @property
    def end(self) -> int:
        """Return the index behind its last placeholder."""
        return self.start + self.rows * self.columns

    def source(self, factor: int, constants: str) -> PictureSource:
        """Return all that decides the picture's rows. factor: pixels of a token's side. constants:
        the processor's settings."""
        media = tuple(file.sha256 for file in self.files)
        return PictureSource(
            self.kind,
            self.orientation,
            media * 2 if self.kind == "video" and len(media) == 1 else media,
            self.rows * factor,
            self.columns * factor,
            constants,
        )


class PicturesWanted(Message):
    """(prefill) Bring the files of these pictures of the transfer's prompt. Answered by
    PicturesCame, or by PrefillEnd. pictures: indices among the prompt's."""

    transfer_id: TransferId
    pictures: tuple[int, ...]


class PicturesCame(Message):
    """(prefill) The wanted files, with the digests named before. files: bytes of each picture's
    files, by the picture's index."""

    transfer_id: TransferId
    files: Mapping[int, tuple[bytes, ...]] = field(repr=False)

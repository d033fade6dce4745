"""Messages about the pictures of a prompt: of one computed on another node, and an engine's report.

The decode node names the pictures in its request. The prefill node asks for the files of those with
missing rows.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

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


class PictureOutcome(StrEnum):
    """The source of a picture's rows for one prompt, or the reason for none.

    SKIPPED: the cache hit covers all its tokens. KEPT: its rows were stored, or made for another
    prompt meanwhile. ENCODED: the tower made them for this prompt. ELSEWHERE: another node computed
    the prompt. UNREACHED: the request ended before it needed them. REFUSED: its file is no picture,
    or beyond a bound. LOST: its file is gone, or its decoder or encode failed. The last two end
    their request.
    """

    SKIPPED = "skipped"
    KEPT = "kept"
    ENCODED = "encoded"
    ELSEWHERE = "elsewhere"
    UNREACHED = "unreached"
    REFUSED = "refused"
    LOST = "lost"


class PictureStage(StrEnum):
    """A stage of a picture's way into its prompt.

    DECODE: file to pixels. RESIZE: pixels to patches. TOWER: patches to
    rows. WAIT: from a prompt's first need of missing rows until they exist, all included.
    """

    DECODE = "decode"
    RESIZE = "resize"
    TOWER = "tower"
    WAIT = "wait"


class PictureUse(Message):
    """One picture of a prompt.

    kind: "image", or "video" for a pair of frames. place: of its part in the request; empty if
    unknown. start: index of its first token. bytes: of its file; 0 if it came as patches. Seconds:
    of each stage for this prompt; 0 for a stage it did not need. decode_at, tower_at, ready_at:
    begins of two stages and the end of the last, in seconds after the request's arrival; only of an
    encoded picture.
    """

    outcome: PictureOutcome
    kind: str
    place: str
    start: int
    tokens: int
    bytes: int
    decode_seconds: float = 0.0
    resize_seconds: float = 0.0
    tower_seconds: float = 0.0
    wait_seconds: float = 0.0
    decode_at: float = 0.0
    tower_at: float = 0.0
    ready_at: float = 0.0


MOST_USES = 64
"""Most pictures reported one by one for a request."""


class PicturesReport(Message):
    """All pictures of a prompt. count: of them. image_tokens, video_tokens: of the prompt's, by
    kind. usable_tokens: of both, covered by the cache hit. each: the last MOST_USES pictures, in
    order."""

    count: int
    image_tokens: int
    video_tokens: int
    usable_tokens: int
    each: tuple[PictureUse, ...]

"""An engine's report about the pictures of one prompt."""

from enum import StrEnum

from .types import Message


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

"""Pictures of a stored turn: as sent, and as placed in its tokens. Plain values, any thread."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasuki.engine.messages import PromptPicture

from .sent_picture import SentPicture


@dataclass(frozen=True, slots=True)
class TurnPictures:
    """sent: the pictures of all messages, in their order, to render them anew. placed: the same
    ones in the turn's tokens, to continue behind those."""

    sent: tuple[SentPicture, ...] = ()
    placed: tuple[PromptPicture, ...] = ()

    @property
    def size(self) -> int:
        """Return the memory of the pictures in bytes, a few objects not counted."""
        return sum(picture.size for picture in self.sent)


NO_PICTURES = TurnPictures()


def moved(pictures: Sequence[PromptPicture], tokens: int) -> tuple[PromptPicture, ...]:
    """Return the pictures in a prompt with as many more tokens before them."""
    return tuple(replace(picture, start=picture.start + tokens) for picture in pictures)

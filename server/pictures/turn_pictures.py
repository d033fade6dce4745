"""Pictures of a stored turn: as sent, and as placed in its tokens. Plain values, any thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tasuki.engine.messages import PictureFile, PromptPicture
from tasuki.engine.messages.media import MediaPart

from .sent_picture import SentPicture


@dataclass(frozen=True, slots=True)
class TurnPictures:
    """sent: the pictures of all messages, in their order, to render them anew. placed: the same
    ones in the turn's tokens, to continue behind those."""

    sent: tuple[SentPicture, ...] = ()
    placed: tuple[PromptPicture, ...] = ()

    @property
    def size(self) -> int:
        """Return the memory of the pictures in bytes, a few objects not counted. Media of this
        process are the same bytes as sent."""
        shared = sum(one.data.charge for one in self._files if isinstance(one.data.held, MediaPart))
        return sum(picture.size for picture in self.sent) + shared

    @property
    def _files(self) -> Iterator[PictureFile]:
        return (one.file for one in self.placed if one.file is not None)

    def emptied(self) -> "TurnPictures":
        """Return the pictures with their bytes as media only. REQUIRES: those sent are those
        placed."""
        return replace(self, sent=tuple(_with_data(one, b"") for one in self.sent))

    def filled(self) -> "TurnPictures":
        """Return the pictures with their bytes, read from the media after emptied(). Raises
        MediaGone, OSError."""
        if all(picture.size for picture in self.sent):
            return self
        pairs = zip(self.sent, self._files, strict=True)
        return replace(self, sent=tuple(_with_data(one, f.data.content()) for one, f in pairs))


NO_PICTURES = TurnPictures()


def moved(pictures: Sequence[PromptPicture], tokens: int) -> tuple[PromptPicture, ...]:
    """Return the pictures in a prompt with as many more tokens before them."""
    return tuple(replace(picture, start=picture.start + tokens) for picture in pictures)


def _with_data(sent: SentPicture, data: bytes) -> SentPicture:
    """Return the picture with other bytes as sent: a file, or its base64."""
    if isinstance(sent.data, bytes):
        return replace(sent, data=data)
    return replace(sent, data=replace(sent.data, text=data))

"""Pictures of a stored turn: as sent, and as placed in its tokens. Plain values, any thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

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
        return (file for one in self.placed for file in one.files)

    def emptied(self) -> "TurnPictures":
        """Return the pictures with their bytes as media only. REQUIRES: those sent are those
        placed."""
        return replace(self, sent=tuple(_with_data(one, repeat(b"")) for one in self.sent))

    def filled(self) -> "TurnPictures":
        """Return the pictures with their bytes, read from the media after emptied(). Raises
        MediaGone, OSError."""
        if all(picture.size for picture in self.sent):
            return self
        contents = (file.data.content() for file in self._files)
        return replace(self, sent=tuple(_with_data(one, contents) for one in self.sent))


NO_PICTURES = TurnPictures()


def moved(pictures: Sequence[PromptPicture], tokens: int) -> tuple[PromptPicture, ...]:
    """Return the pictures in a prompt with as many more tokens before them."""
    return tuple(replace(picture, start=picture.start + tokens) for picture in pictures)


def _with_data(sent: SentPicture, contents: Iterator[bytes]) -> SentPicture:
    """Return the picture with other bytes as sent, files or their base64. contents: those of each
    frame, in order."""
    data = next(contents)
    held = data if isinstance(sent.data, bytes) else replace(sent.data, text=data)
    pair = sent.pair
    if pair is not None and pair.second is not None:
        pair = replace(pair, second=_with_data(pair.second, contents))
    return replace(sent, data=held, pair=pair)

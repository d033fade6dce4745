"""Pictures kept with a stored turn, or with a session's log.

TurnPictures has a turn's pictures as sent, and as placed in its tokens. A plain value, any thread.

SessionPictures has those of a log, in order, with their files as long as the budget allows. A turn
needs a picture's place and digest always: they name the log in the cache. It needs the file only if
the picture's rows must be computed. So the oldest files go first, and the places stay. The engine
ends a request that needs a file gone, with the kind `picture_gone`. It owns its list. Files are
shared with forked sessions and with requests in flight. One event loop's thread.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from tasuki.engine.messages import FileCoding, Media, PictureFile, PromptPicture
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


class SessionPictures:
    """nbytes: of the files held."""

    def __init__(self, placed: Sequence[PromptPicture] = ()) -> None:
        self._placed = [*placed]
        self._gone = 0
        """Number of first pictures without a file."""
        self.nbytes = sum(map(_file_bytes, placed))

    @property
    def placed(self) -> tuple[PromptPicture, ...]:
        """Return the pictures, with their places in the log."""
        return tuple(self._placed)

    def append(self, pictures: Sequence[PromptPicture], tokens: int) -> None:
        """Add pictures behind the log's first `tokens` tokens, named by their number in the
        session."""
        for picture in moved(pictures, tokens):
            self._placed.append(_named(picture, len(self._placed) + 1))
            self.nbytes += _file_bytes(picture)

    def drop_oldest(self) -> int:
        """Drop the file of the oldest picture with one. Return its bytes; 0 if none is left."""
        while self._gone < len(self._placed):
            picture = self._placed[self._gone]
            dropped = _file_bytes(picture)
            self._placed[self._gone] = _without_file(picture)
            self._gone += 1
            self.nbytes -= dropped
            if dropped:
                return dropped
        return 0

    def copy(self) -> "SessionPictures":
        twin = SessionPictures(self._placed)
        twin._gone = self._gone
        return twin


def _file_bytes(picture: PromptPicture) -> int:
    return sum(file.data.charge for file in picture.files)


def _named(picture: PromptPicture, number: int) -> PromptPicture:
    """Return the picture with a place that names it in its session."""
    return picture.with_files(
        lambda file: replace(file, place=f"picture {number} of the session ({file.place})")
    )


def _without_file(picture: PromptPicture) -> PromptPicture:
    return picture.with_files(lambda file: replace(file, data=Media(b""), coding=FileCoding.GONE))

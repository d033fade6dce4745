"""The pictures of a session's log, in order, with their files as long as the budget allows.

A turn needs a picture's place and digest always: they name the log in the cache. It needs the file
only if the picture's rows must be computed. So the oldest files go first, and the places stay. The
engine ends a request that needs a file gone, with the kind `picture_gone`.

SessionPictures owns its list. Files are shared with forked sessions and with requests in flight.
One event loop's thread.
"""

from collections.abc import Sequence
from dataclasses import replace

from tasuki.engine.messages import FileCoding, PromptPicture

from .turn_pictures import moved


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
    return 0 if picture.file is None else len(picture.file.data)


def _named(picture: PromptPicture, number: int) -> PromptPicture:
    """Return the picture with a place that names it in its session."""
    if picture.file is None:
        return picture
    place = f"picture {number} of the session ({picture.file.place})"
    return replace(picture, file=replace(picture.file, place=place))


def _without_file(picture: PromptPicture) -> PromptPicture:
    if picture.file is None:
        return picture
    return replace(picture, file=replace(picture.file, data=b"", coding=FileCoding.GONE))

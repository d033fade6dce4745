"""Pictures that a prefill engine needs from the receiver of a transfer.

A prompt is matched first. Then the files of the pictures with rows to be computed are asked for,
while the prompt holds no memory in the arena. Files stay with their request until it ends, because
it may compute them again. Owns the identities of the pictures of live transfers. Thread rule: the
engine loop's.
"""

from tasuki.engine import messages as m
from tasuki.engine.pictures.handed import with_files
from tasuki.engine.request import AwaitingMedia, Request, Waiting
from tasuki.engine.roles.base import HandoverContext


class AwaitedMedia:
    def __init__(self, context: HandoverContext) -> None:
        self._scheduler = context.scheduler
        self._emit = context.emit
        self._handed: dict[m.TransferId, tuple[m.HandedPicture, ...]] = {}

    def enter(self, transfer_id: m.TransferId, handed: tuple[m.HandedPicture, ...]) -> None:
        """Keep the identities of a new transfer's pictures, until leave()."""
        self._handed[transfer_id] = handed

    def leave(self, transfer_id: m.TransferId) -> None:
        """Forget a transfer. Idempotent."""
        self._handed.pop(transfer_id, None)

    def ask(self, request: Request, transfer_id: m.TransferId, start: int) -> bool:
        """Ask for the files of pictures with a row to be computed at `start` or later. Return False
        if none is missing. REQUIRES: the request is Waiting, and holds no memory."""
        pictures = self._scheduler.pictures
        if request.pictures is None or pictures is None:
            return False
        missing = pictures.missing(request, start)
        if not missing:
            return False
        # One file serves each place of its picture.
        first = {request.pictures.pictures[index].digest: index for index in reversed(missing)}
        wanted = tuple(sorted(first.values()))
        request.move(AwaitingMedia())
        self._emit(m.PicturesWanted(transfer_id, wanted))
        return True

    def came(self, request: Request, message: m.PicturesCame) -> None:
        """Let the request wait for its turn again, with the files. Drop unawaited ones."""
        if not isinstance(request.state, AwaitingMedia):
            return
        handed = self._handed[message.transfer_id]
        assert request.pictures is not None
        request.pictures = with_files(request.pictures, handed, message.files)
        request.move(Waiting())
        self._scheduler.requeue(request)


def is_unseen(request: Request) -> bool:
    """Return True if the prompt is a state with pictures that are unknown here. Only the token
    behind the state may then be computed."""
    return request.pictures is not None and not request.pictures.pictures

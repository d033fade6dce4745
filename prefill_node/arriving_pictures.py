"""Files of a prompt's pictures, arriving from the decode node of a transfer.

ArrivingPictures takes the pieces of one call, in order, and compares each file with its digest.
MediaBudget bounds the bytes held for all transfers of this node. Thread rule: the event loop.
Invariant: a peer's bytes are held only as long as they fit their announced length, their order and
the budget.
"""

import hashlib
from collections.abc import Iterator, Sequence

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid

PIECE_BYTES = 256 * 2**10
"""Bytes of each piece of a file but its last."""
LONGEST_FILE = 64 * 2**20
"""Largest number of bytes of an encoded picture."""
MOST_MEDIA_BYTES = 4 * 2**30


class MediaBudget:
    """Bytes of encoded pictures held for transfers, by transfer."""

    def __init__(self, most: int = MOST_MEDIA_BYTES) -> None:
        """most: of all transfers together."""
        self._most = most
        self._held: dict[int, int] = {}

    @property
    def held(self) -> int:
        return sum(self._held.values())

    def add(self, transfer_id: int, size: int) -> None:
        """Count bytes for a transfer. Raises PeerInvalid, with nothing counted, beyond the
        budget."""
        if self.held + size > self._most:
            raise PeerInvalid(f"pictures of all transfers take more than {self._most} bytes here")
        self._held[transfer_id] = self._held.get(transfer_id, 0) + size

    def release(self, transfer_id: int) -> None:
        """Give a transfer's bytes back. Idempotent."""
        self._held.pop(transfer_id, None)


class ArrivingPictures:
    """The pictures asked for once in a transfer. begun: True once their call has begun."""

    def __init__(
        self,
        transfer_id: int,
        wanted: Sequence[int],
        handed: Sequence[m.HandedPicture],
        budget: MediaBudget,
    ) -> None:
        """wanted: indices of the pictures. handed: all pictures of the prompt."""
        self.wanted = tuple(wanted)
        self.begun = False
        self._transfer_id = transfer_id
        self._budget = budget
        self._files: dict[int, list[bytes]] = {index: [] for index in wanted}
        self._order = self._expected(handed)
        self._now = next(self._order, None)
        self._data = bytearray()
        self._length: int | None = None

    def _expected(
        self, handed: Sequence[m.HandedPicture]
    ) -> Iterator[tuple[int, int, m.FileIdentity]]:
        for index in self.wanted:
            for number, file in enumerate(handed[index].files):
                yield index, number, file

    @property
    def is_complete(self) -> bool:
        """Return True if every file has arrived, and has its digest."""
        return self._now is None

    def files(self) -> dict[int, tuple[bytes, ...]]:
        """Return the files by their picture's index. REQUIRES: they are complete."""
        assert self.is_complete
        return {index: tuple(files) for index, files in self._files.items()}

    def take(self, piece: pb.PicturePiece) -> None:
        """Take the next piece. Raises PeerInvalid, also for bytes without the announced digest."""
        if self._now is None:
            raise PeerInvalid("a piece came behind the last file")
        index, number, identity = self._now
        if (piece.picture, piece.file) != (index, number):
            came = piece.picture, piece.file
            raise PeerInvalid(f"a piece is of picture and file {came}, not {(index, number)}")
        if self._length is None:
            if not 0 < piece.length <= LONGEST_FILE:
                raise PeerInvalid(f"a picture of {piece.length} bytes, at most {LONGEST_FILE}")
            self._length = piece.length
        left = self._length - len(self._data)
        if piece.length != self._length or len(piece.data) != min(left, PIECE_BYTES):
            raise PeerInvalid(f"a piece of {len(piece.data)} bytes, {left} of the file are left")
        self._budget.add(self._transfer_id, len(piece.data))
        self._data += piece.data
        if len(self._data) == self._length:
            self._end_file(index, identity)

    def _end_file(self, index: int, identity: m.FileIdentity) -> None:
        content = bytes(self._data)
        if hashlib.sha256(content).digest() != identity.sha256:
            raise PeerInvalid(f"the bytes of picture {index} have another digest than announced")
        self._files[index].append(content)
        self._data, self._length = bytearray(), None
        self._now = next(self._order, None)

"""The ends of each connection's last rooms: how each drained, and which numbers are used."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tasuki.transfer.reports import Drain

_ROOMS = 1024
_CONNECTIONS = 256

_Room = tuple[int, int]
"""Number and generation."""


class EndedRooms:
    """How the last rooms of each connection ended, so that a late or repeated abort is answered
    right and no number is used twice.

    Invariants: what one connection's rooms came to is reported to none other. A drain that was
    forced is remembered as long as its connection is, since to forget it would be to say that
    nothing can land any more. Of a connection that is forgotten nothing is said.
    """

    def __init__(
        self,
        lives: Callable[[str], bool],
        rooms: int = _ROOMS,
        connections: int = _CONNECTIONS,
    ) -> None:
        """lives: whether a connection is not over; such a one is never forgotten, however many come
        after it. rooms, connections: how many are remembered, drained rooms of each."""
        self._lives = lives
        self._limit = rooms
        self._connections_limit = connections
        self._drained: OrderedDict[str, OrderedDict[_Room, None]] = OrderedDict()
        self._forced: dict[str, set[_Room]] = {}

    def began(self, connection: str) -> None:
        """Its rooms are answered for from now on."""
        self._drained[connection] = OrderedDict()
        self._forced[connection] = set()
        surplus = len(self._drained) - self._connections_limit
        over = (name for name in self._drained if not self._lives(name))
        for name in list(islice(over, max(0, surplus))):
            del self._drained[name], self._forced[name]

    def knows(self, connection: str) -> bool:
        """Whether it is or was one of this process, and is not forgotten."""
        return connection in self._drained

    def remember(self, connection: str, room: int, generation: int, drain: Drain) -> None:
        """Without effect where the connection is forgotten."""
        drained = self._drained.get(connection)
        if drained is None:
            return
        if drain is Drain.FORCED:
            self._forced[connection].add((room, generation))
            return
        drained[room, generation] = None
        while len(drained) > self._limit:
            drained.popitem(last=False)

    def drain(self, connection: str, room: int, generation: int) -> Drain | None:
        """None where no room of that connection ended so, as far as is remembered."""
        key = (room, generation)
        if key in self._forced.get(connection, ()):
            return Drain.FORCED
        return Drain.DRAINED if key in self._drained.get(connection, ()) else None

    def refusal(self, connection: str, room: int, generation: int, is_open: bool) -> str | None:
        """Return why the connection may not open the room; None where it may. is_open: a room of
        that number lives."""
        if self.drain(connection, room, generation) is not None:
            return f"room {room} is over: take a new room"
        return f"room {room} is open: take a new room" if is_open else None

    def aborted(self, connection: str, room: int, generation: int) -> Drain:
        """Return how a room drained that does not live. From now on it is over, also where its
        opening comes later than its abort."""
        drain = self.drain(connection, room, generation) or Drain.DRAINED
        self.remember(connection, room, generation, drain)
        return drain

"""What each end of a connection keeps of it: who asked for which lease when, for how long the other
end has said nothing, and how its last rooms ended.

Either node may write to the other. A beat asks for the beating node's lease, and the renewal of
that number grants it; a renewal asks for the answering node's lease, and the beat that names it
grants it. Knows no stream and no live rooms. Pure: the caller gives the time, of this node's clock.
Invariants: a lease counts from its question, never from the answer. What nobody asked for grants
nothing. Silence counts only between two ticks that this node made in time, since what a peer said
in a gap of ours may wait where nobody has read it yet; but gaps postpone nothing for ever: the
LATE_TICKS-th since the peer's last message is the last.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.reports import Drain

_MOST_UNHEARD = 256
"""Renewals that a beating node may leave unconfirmed; each is kept until it is confirmed."""
LATE_TICKS = 10
_TICKS_A_LIMIT = 10


class Silence:
    """For how long a peer says nothing: it is lost after its silence, and not after this node's."""

    def __init__(
        self, limit: float, now: float, period: float | None = None, *, grace: float = 0.0
    ) -> None:
        """limit: seconds of silence that lose a peer. period: how often tick() is to be called; a
        tick that comes after two of them is late. grace: seconds more before the first message.
        Times are this node's monotonic seconds."""
        self.limit = limit
        self.period = limit / _TICKS_A_LIMIT if period is None else period
        self.received(now)
        self._silent = -grace

    def received(self, now: float) -> None:
        """The peer said something."""
        self._ticked = now
        self._silent = 0.0
        self._late = 0

    def tick(self, now: float) -> bool:
        """Whether the peer is lost."""
        gap, self._ticked = now - self._ticked, now
        if gap > 2 * self.period:
            self._late += 1
        else:
            self._silent += gap
        return self._silent >= self.limit or self._late >= LATE_TICKS


class Beating:
    """The prefill node's end."""

    def __init__(self, silence: Silence) -> None:
        self.silence = silence
        self._asked: dict[int, float] = {}
        """Beats not answered yet, and when they were sent."""
        self._sequence = 0
        self._renewal = 0

    def beat(self, now: float) -> tuple[int, int]:
        """Return the number of the beat to be sent now, and the last renewal that it confirms."""
        self._sequence += 1
        self._asked[self._sequence] = now
        return self._sequence, self._renewal

    def renewed(self, sequence: int, now: float) -> float | None:
        """Take a renewal. Return when the lease that it grants was asked for; None where it grants
        none."""
        self._renewal = max(self._renewal, sequence)
        asked = self._asked.pop(sequence, None)
        if asked is None:
            return None
        self.silence.received(now)
        for unanswered in [number for number in self._asked if number < sequence]:
            del self._asked[unanswered]
        return asked


class Renewing:
    """The decode node's end."""

    def __init__(self, silence: Silence, now: float) -> None:
        """Renewal 0 is sent now: it opens the heartbeat."""
        self.silence = silence
        self._asked = {0: now}

    def beat(self, sequence: int, received: int, now: float) -> float | None:
        """Take a beat; the renewal of its number is to be sent at once. Return when the lease that
        it grants was asked for; None where it grants none. Raises PeerInvalid where it confirms
        too little."""
        self.silence.received(now)
        asked = self._asked.get(received)
        self._asked = {number: at for number, at in self._asked.items() if number >= received}
        if len(self._asked) > _MOST_UNHEARD:
            raise PeerInvalid("it beats and confirms nothing")
        self._asked[sequence] = now
        return asked


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

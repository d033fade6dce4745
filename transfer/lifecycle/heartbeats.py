"""Heartbeats of a connection: requests for write leases, their grants, and the timeout of a silent
peer.

Either node may write to the other. A heartbeat asks for the sending node's lease, and the renewal
with its number grants it. A renewal asks for the answering node's lease, and the next heartbeat
confirming it grants it. The module is pure: the caller gives the time, of this node's clock.

Invariants: a lease counts from its request, never from the answer. An unknown number grants
nothing. A peer's silence counts only between two ticks made in time by this node: a message
received during this node's own delay may not be read yet. Delays do not postpone the timeout for
ever: after LATE_TICKS late ticks since the peer's last message it is lost.
"""

from tasuki.transfer.errors import PeerInvalid

_MOST_UNHEARD = 256
"""Most unconfirmed renewals for a node sending heartbeats; each is kept until a heartbeat confirms
it."""
LATE_TICKS = 10
_TICKS_A_LIMIT = 10


class HeartbeatTimeout:
    """Heartbeat timeout: a peer is lost after its own silence, not after a delay of this node."""

    def __init__(
        self, limit: float, now: float, period: float | None = None, *, grace: float = 0.0
    ) -> None:
        """limit: heartbeat timeout in seconds; a peer silent for longer is lost. period: seconds
        between calls of tick(); a tick after more than two periods is late. grace: additional
        seconds before the first message. Times are this node's monotonic seconds."""
        self.limit = limit
        self.period = limit / _TICKS_A_LIMIT if period is None else period
        self.received(now)
        self._silent = -grace

    def received(self, now: float) -> None:
        """Record the arrival of a message from the peer: its silence begins anew."""
        self._ticked = now
        self._silent = 0.0
        self._late = 0

    def tick(self, now: float) -> bool:
        """Count the peer's silence since the last call. Return True if lost: too silent, or
        LATE_TICKS calls were late."""
        gap, self._ticked = now - self._ticked, now
        if gap > 2 * self.period:
            self._late += 1
        else:
            self._silent += gap
        return self._silent >= self.limit or self._late >= LATE_TICKS


class Beating:
    """Prefill node's end of the heartbeats: it sends heartbeats and takes renewals."""

    def __init__(self, heartbeat_timeout: HeartbeatTimeout) -> None:
        self.heartbeat_timeout = heartbeat_timeout
        self._asked: dict[int, float] = {}
        """Send times of the unanswered heartbeats, by number."""
        self._sequence = 0
        self._renewal = 0

    def heartbeat(self, now: float) -> tuple[int, int]:
        """Begin a heartbeat. Return its number, and that of the last renewal, confirmed by it."""
        self._sequence += 1
        self._asked[self._sequence] = now
        return self._sequence, self._renewal

    def renewed(self, sequence: int, now: float) -> float | None:
        """Take a renewal with this heartbeat number. Return the time of its heartbeat: the granted
        lease counts from it. Return None if it grants none: the heartbeat is unknown, or answered
        already."""
        self._renewal = max(self._renewal, sequence)
        asked = self._asked.pop(sequence, None)
        if asked is None:
            return None
        self.heartbeat_timeout.received(now)
        for unanswered in [number for number in self._asked if number < sequence]:
            del self._asked[unanswered]
        return asked


class Renewing:
    """Decode node's end of the heartbeats: it takes them, and its caller sends renewals."""

    def __init__(self, heartbeat_timeout: HeartbeatTimeout, now: float) -> None:
        """Begin with renewal 0, sent at `now` to open the heartbeats."""
        self.heartbeat_timeout = heartbeat_timeout
        self._asked = {0: now}

    def heartbeat(self, sequence: int, received: int, now: float) -> float | None:
        """Take a heartbeat; the caller must send the renewal with its number. received: number of
        the renewal confirmed by it. Return the time of this renewal, for the lease counted from it;
        None if no lease is granted. Raises PeerInvalid if too many renewals are unconfirmed."""
        self.heartbeat_timeout.received(now)
        asked = self._asked.get(received)
        self._asked = {number: at for number, at in self._asked.items() if number >= received}
        if len(self._asked) > _MOST_UNHEARD:
            raise PeerInvalid("it sends heartbeats and confirms nothing")
        self._asked[sequence] = now
        return asked

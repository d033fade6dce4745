"""Memory of the last ended transfers of each connection: how their writes ended, and their used
ids."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tasuki.transfer.reports import Drain

_ROOMS = 1024
_CONNECTIONS = 256

_Transfer = tuple[int, int]
"""Id and generation of a transfer."""


class EndedTransfers:
    """Last ended transfers of each connection. With them a late or repeated abort is answered
    correctly, and no transfer id is used twice.

    Invariants: the ends of one connection's transfers are reported to no other. A forced drain is
    remembered as long as its connection, because forgetting it would claim the end of all writes.
    For a forgotten connection no answer is given.
    """

    def __init__(
        self, lives: Callable[[str], bool], transfers: int = _ROOMS, connections: int = _CONNECTIONS
    ) -> None:
        """lives: returns True if a connection has not ended; a live one is never forgotten, even
        beyond the limit. transfers: most drained transfers remembered for each connection.
        connections: most connections remembered."""
        self._lives = lives
        self._limit = transfers
        self._connections_limit = connections
        self._drained: OrderedDict[str, OrderedDict[_Transfer, None]] = OrderedDict()
        self._forced: dict[str, set[_Transfer]] = {}

    def began(self, connection: str) -> None:
        """Begin to remember the ends of this connection's transfers, and forget the oldest ended
        connections beyond the limit."""
        self._drained[connection] = OrderedDict()
        self._forced[connection] = set()
        surplus = len(self._drained) - self._connections_limit
        over = (name for name in self._drained if not self._lives(name))
        for name in list(islice(over, max(0, surplus))):
            del self._drained[name], self._forced[name]

    def knows(self, connection: str) -> bool:
        """Return True if the connection is or was one of this process, and is still remembered."""
        return connection in self._drained

    def remember(self, connection: str, transfer_id: int, generation: int, drain: Drain) -> None:
        """Remember how the transfer's writes ended; no effect if the connection is forgotten."""
        drained = self._drained.get(connection)
        if drained is None:
            return
        if drain is Drain.FORCED:
            self._forced[connection].add((transfer_id, generation))
            return
        drained[transfer_id, generation] = None
        while len(drained) > self._limit:
            drained.popitem(last=False)

    def drain(self, connection: str, transfer_id: int, generation: int) -> Drain | None:
        """Return how the transfer's writes ended; None if the connection has no remembered transfer
        with this id and generation."""
        key = (transfer_id, generation)
        if key in self._forced.get(connection, ()):
            return Drain.FORCED
        return Drain.DRAINED if key in self._drained.get(connection, ()) else None

    def refusal(
        self, connection: str, transfer_id: int, generation: int, is_open: bool
    ) -> str | None:
        """Return the reason for refusing to open the transfer on the connection; None if it may be
        opened. is_open: True if a live transfer has this id."""
        if self.drain(connection, transfer_id, generation) is not None:
            return f"transfer {transfer_id} is over: take a new number"
        return f"transfer {transfer_id} is open: take a new number" if is_open else None

    def aborted(self, connection: str, transfer_id: int, generation: int) -> Drain:
        """Return the drain of an aborted transfer without a live state; DRAINED if none is
        remembered. It counts as ended from now on, even if its opening message comes later."""
        drain = self.drain(connection, transfer_id, generation) or Drain.DRAINED
        self.remember(connection, transfer_id, generation, drain)
        return drain

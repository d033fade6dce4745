"""The pulls that this prefill node has asked for, each with its writer's fence.

Owns them. Thread rule: the event loop. Invariant: every PullWanted is answered, at once where its
decode node is not connected any more.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from tasuki.engine import messages as m
from tasuki.transfer.fencing.evidence import FenceReason
from tasuki.transfer.fencing.writer_fence import LastResorts, WriterFence
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.live_rooms import LiveRooms
from tasuki.transfer.rooms.room_deadlines import PullReceiverDeadlines
from tasuki.transfer.windows.send_report import Drain

from .decode_connections import ReceiverConnections
from .pull_receiver import PullReceiver, Say


class PullReceivers:
    def __init__(
        self,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        connections: ReceiverConnections,
        retry_seconds: float,
        patience: float,
        sever: Callable[[WriterLife, FenceReason], Awaitable[None]],
        deadlines: PullReceiverDeadlines,
    ) -> None:
        """retry_seconds: the transport's. patience: see LastResorts. sever: see Severing.end."""
        self._post = post
        self._receiver = receiver
        self._connections = connections
        self._retry_seconds = retry_seconds
        self._patience = patience
        self._sever = sever
        self._deadlines = deadlines
        self._live: LiveRooms[tuple[int, int], PullReceiver] = LiveRooms("pull")

    def refuse(self, room: m.RoomId) -> None:
        """Nobody is asked: the room or its decode node is gone."""
        self._post(m.PullLost(room))
        self._post(m.PullFenced(room))

    def begin(self, grant: m.PullGrant, connection: str, say: Say) -> PullReceiver | None:
        """Ask over the room's stream; None where the connection is over."""
        writer = self._connections.writer(connection)
        if writer is None:
            self.refuse(grant.room)
            return None
        last = LastResorts(
            self._patience,
            lambda: self._connections.drop(connection),
            partial(self._sever, writer),
        )
        fence = WriterFence(grant.room, writer.evidence(), self._retry_seconds, last)
        pull = PullReceiver(grant, self._post, self._receiver, writer, fence, self._deadlines, say)
        self._live.start((grant.room, grant.generation), pull, self._over)
        return pull

    def _over(self, pull: PullReceiver, failure: Exception | None) -> None:
        if failure is not None:
            # It broke before its grant was sent.
            self.refuse(pull.room)

    @property
    def writers(self) -> list[WriterLife]:
        """Of the pulls that are not over."""
        return [pull.writer for pull in self._live]

    def acknowledge(self, room: int, generation: int, drain: Drain) -> None:
        """A renewal says how a pull ended; of one that is over already it says nothing new."""
        if (pull := self._live.get((room, generation))) is not None:
            pull.acknowledge(drain)

    async def stop(self) -> None:
        """Lose all and wait for their fences, at most `patience` seconds."""
        for pull in self._live:
            pull.give_up("the prefill node shuts down")
        await self._live.end(self._patience)

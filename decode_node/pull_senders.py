"""The pulls that this decode node serves now, each with its task.

Owns them. Knows no rooms and no streams. Thread rule: the event loop. Invariant: a room has one
pull at most.
"""

import asyncio
from collections.abc import Callable

from tasuki.engine import messages as m
from tasuki.transfer.rooms.room_deadlines import PullSenderDeadlines
from tasuki.transfer.sending.sender import Sender

from .prefill_link import PrefillConnection
from .pull_sender import OutgoingPull, Say


class OutgoingPulls:
    def __init__(
        self,
        post: Callable[[m.Inbox], None],
        sender: Sender,
        deadlines: PullSenderDeadlines,
    ) -> None:
        self._post = post
        self._sender = sender
        self._deadlines = deadlines
        self._live: dict[m.RoomId, OutgoingPull] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, grant: m.PullGrant, connection: PrefillConnection, say: Say) -> OutgoingPull:
        """REQUIRES: the room has no pull that lives."""
        pull = OutgoingPull(grant, connection, self._post, self._sender, say, self._deadlines)
        self._live[grant.room] = pull
        task = asyncio.get_running_loop().create_task(self._run(pull), name=f"pull-{grant.room}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pull

    async def _run(self, pull: OutgoingPull) -> None:
        try:
            await pull.run()
        finally:
            del self._live[pull.room]

    def deliver(self, message: m.PullPinned | m.PullRefused) -> None:
        """What the engine says; of pulls that are over it is dropped."""
        room = message.source.room if isinstance(message, m.PullPinned) else message.room
        if (pull := self._live.get(room)) is not None:
            pull.put(message)

    async def stop(self, patience: float) -> None:
        """Stop all and wait until they have drained, at most `patience` seconds."""
        for pull in self._live.values():
            pull.stop("the decode node shuts down")
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()

"""One fetch on the decode node: between the prefill node's stream, the engine and the receiver.

Owns what a fetch adds to an incoming room: how it is asked for, and until when it is worth it.
Thread rule: the event loop.
"""

import asyncio
from collections.abc import Callable
from types import MappingProxyType

from tasuki.decode_node import handover_messages as wire
from tasuki.decode_node.handover_settings import HandoverSettings
from tasuki.decode_node.prefill_link import PrefillConnection, PrefillLink
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.receiving.receiver import Receiver

from .incoming_room import GivenUp, IncomingRoom

_OUTCOMES = MappingProxyType(
    {
        m.LossCause.NO_ROOM: m.FetchOutcome.NO_ROOM,
        m.LossCause.REFUSED: m.FetchOutcome.REFUSED,
        m.LossCause.QUEUE_TIMEOUT: m.FetchOutcome.LATE,
    }
)


class IncomingFetch(IncomingRoom):
    def __init__(
        self,
        wanted: m.FetchWanted,
        link: PrefillLink,
        connection: PrefillConnection,
        fence: WriterFence,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        settings: HandoverSettings,
    ) -> None:
        """REQUIRES: the connection, of that link, is alive."""
        super().__init__(
            wanted.ticket.room,
            wanted.ticket.generation,
            m.RequestId(""),
            link,
            connection,
            fence,
            post,
            receiver,
            settings,
            f"fetch {wanted.ticket.room}",
        )
        self._wanted = wanted

    def _opening(self) -> pb.ReceiverMessage:
        return wire.fetch(self._wanted)

    async def run(self) -> None:
        seconds = self._wanted.seconds
        late = GivenUp(f"it is not here within {seconds:.3g} s", m.LossCause.QUEUE_TIMEOUT)
        bound = asyncio.get_running_loop().call_later(seconds, self.put, late)
        try:
            await super().run()
        finally:
            bound.cancel()

    def _heard(self, message: pb.SenderMessage) -> None:
        if message.WhichOneof("message") == "held":
            self._is_ready(message.held.generation)
        else:
            super()._heard(message)

    def _refused(self, refused: pb.Refused) -> None:
        self._post(m.FetchLost(self.room, m.FetchOutcome.REFUSED))

    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        self.mark_lost(reason)
        self._post(m.FetchLost(self.room, _OUTCOMES.get(cause, m.FetchOutcome.LOST)))

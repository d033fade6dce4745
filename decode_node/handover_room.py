"""One hand-over on the decode node: between the prefill node's stream, the engine and the receiver.

Owns what a hand-over adds to an incoming room (rooms/incoming_room.py): the place in the sender's
queue, what is pulled of it, and the first token. Thread rule: the event loop.
"""

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values
from tasuki.transfer.fencing.writer_fence import WriterFence
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import ReceiverState
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.rooms.room import Stalled, Stopped

from . import handover_messages as wire
from .handover_settings import HandoverSettings
from .prefill_link import PrefillConnection
from .prefill_routing.chosen_node import Chosen
from .pull_sender import PullSender, Say
from .rooms.incoming_room import IncomingRoom, RoomEvent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NotBegun(Stalled):
    """The sender's queue has had the prompt for too long, moving or not."""

    @property
    def reason(self) -> str:
        return f"its prompt was not begun for {self.seconds} s: {self.state.value}"


BeginPull: TypeAlias = Callable[[m.PullGrant, PrefillConnection, Say], PullSender]


class IncomingHandover(IncomingRoom):
    def __init__(
        self,
        wanted: m.HandoverWanted,
        chosen: Chosen,
        fence: WriterFence,
        post: Callable[[m.Inbox], None],
        receiver: Receiver,
        settings: HandoverSettings,
        begin_pull: BeginPull,
        traceparent: str = "",
    ) -> None:
        """chosen: the prefill node, and why. begin_pull: serves what that pulls of this room;
        outlives it. traceparent: of the room's request; empty where it has none. REQUIRES: the
        connection is alive."""
        super().__init__(
            wanted.ticket.room,
            wanted.ticket.generation,
            wanted.request_id,
            chosen.link,
            chosen.connection,
            fence,
            post,
            receiver,
            settings,
            f"room {wanted.ticket.room}",
        )
        self._wanted = wanted
        self._chosen = chosen
        self._wait: float | None = None
        """Seconds of prefill that were before it when it came."""
        self._position: int | None = None
        """In the prefill node's queue."""
        self._waits = ProgressWatch(settings.deadlines.look)
        self._landed = 0
        self._begin_pull = begin_pull
        self._pull: PullSender | None = None
        self._traceparent = traceparent

    def _opening(self) -> pb.ReceiverMessage:
        return wire.reserve(self._wanted, self._traceparent)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._pull is not None:
                self._pull.put(Stopped("its room is over"))

    def _stood_still(self) -> Stalled | None:
        landed = self.progress or 0
        self.connection.landed += max(0, landed - self._landed)
        self._landed = landed
        state = self.machine.state
        waits = self._behind or state is ReceiverState.RESERVED
        waited = self._waits.still((state if waits else None, self._pulled))
        queue = self._settings.deadlines.queue
        if waits and waited > queue:
            return _NotBegun(state, queue)
        return super()._stood_still()

    def _marks(self) -> Hashable:
        others = self.connection.landed if self._behind else 0
        return self._position, self._pulled, self._landed, others

    @property
    def _behind(self) -> bool:
        """Granted, and none of it has come: it waits for those that the sender computes before
        it."""
        return self.machine.state is ReceiverState.GRANTED and not self._landed

    @property
    def _pulled(self) -> int | None:
        return None if self._pull is None else self._pull.progress

    def take(self, event: RoomEvent | Stalled) -> None:
        match event:
            case _NotBegun():
                self._lose(event.reason, m.LossCause.QUEUE_TIMEOUT)
            case _:
                super().take(event)

    def _heard(self, message: pb.SenderMessage) -> None:
        match message.WhichOneof("message"):
            case "queued":
                super()._heard(message)
                self._position = message.queued.position
                if message.queued.HasField("wait_seconds") and self._wait is None:
                    self._must_wait(message.queued.wait_seconds)
            case "pull":
                self._serve_pull(message.pull)
            case "stop_pull":
                if self._pull is not None:
                    self._pull.put(Stopped("the prefill node does not wait any longer"))
            case "ready":
                self._ready(message.ready)
            case _:
                super()._heard(message)

    def _must_wait(self, seconds: float) -> None:
        """Where another node would begin it so much sooner, it goes there."""
        wait = self._wait = peer_values.seconds(seconds, "queued.wait_seconds")
        chosen = self._chosen
        self.connection.load.answered(wait, chosen.asked_at, time.monotonic())
        if self._pull is None and chosen.second is not None and chosen.should_move(wait):
            reason = f"{wait:.3g} s of other prompts are before it"
            self._lose(reason, m.LossCause.MOVED)

    def _serve_pull(self, pull: pb.Pull) -> None:
        if self._pull is not None or self.machine.state is not ReceiverState.RESERVED:
            self._lose("the prefill node pulls twice, or too late")
            return
        grant = wire.pull_from_wire(self.room, pull)
        self._pull = self._begin_pull(grant, self.connection, self._line.say)

    def _ready(self, ready: pb.Ready) -> None:
        if not self._is_ready(ready.generation):
            return
        remote = wire.ready_from_wire(self.room, ready, self.connection.node.name)
        usable = remote.hit.usable_tokens
        report = self._chosen.report(self._wait, usable)
        self._note_found(usable)
        self._post(replace(remote, prefill_choice=report))

    def _note_found(self, usable: int) -> None:
        hints = self.connection.hints
        before = hints.doubted
        hints.note(self._chosen.listed, usable)
        if hints.doubted != before:
            log.warning(
                "prefill node %s: %s of what it lists is found there; it is %s",
                self.connection.node.name,
                "less than half" if hints.doubted else "most",
                "believed for that part alone" if hints.doubted else "believed again",
            )

    def _refused(self, refused: pb.Refused) -> None:
        self._post(wire.refused_from_wire(self.room, refused))

    def _lose(self, reason: str, cause: m.LossCause = m.LossCause.STREAM) -> None:
        self._post(m.HandoverFailed(self.room, self.mark_lost(reason), cause=cause))

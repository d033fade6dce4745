"""The second driver of the pure state machines (the first is the product): sides of transfers over
a virtual clock, and the actions common to both nodes.

Every step of a side is shown to the simulation's checks.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.fence import FenceReason
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.sending import Sending
from tasuki.transfer.lifecycle.stepping import SteppedSide
from tasuki.transfer.reports import Drain

from .world import Violation

if TYPE_CHECKING:
    from .peers import Connection, Peer, Stream

LANDING = 2.0
_BUSY_SHARE, _BUSY = 0.25, 0.3
"""Probability of other work delaying a node's own answer, and the longest delay in seconds."""
Tell = Callable[[Action], Event | None]


class SimulatedSide(SteppedSide):
    def __init__(
        self,
        side: Receiving | Sending,
        peer: "Peer",
        connection: "Connection",
        stream: "Stream",
        tell: Tell,
        closed: Callable[["SimulatedSide"], None],
    ) -> None:
        """Set up a side of a transfer. peer: the side's node. tell: performs actions of the engine
        or the stream. closed: called when the side is over."""
        super().__init__(side, f"{side.kind.name} {side.transfer_id} on {peer.node.name}")
        self.peer = peer
        self.connection = connection
        self.stream = stream
        self.stream_over_at = peer.world.now
        """Virtual time of the last check with this side's stream still open."""
        self.tell = tell
        self.pull: SimulatedSide | None = None
        self.looks_at: float | None = None
        """Time of this side's next check, by its node's clock; None: no check is due."""
        self.state_since = (side.state, peer.node.clock())
        self.born = peer.world.now
        self.finals = 0
        """Number of final messages this side has sent."""
        self.pieces = 0
        """Number of pieces of pictures moved for this transfer."""
        self.drain_believed = False
        """True once the drain of this side's writer was accepted and checked."""
        self._closed = closed
        self._life = peer.node.life
        peer.checks.began(self)
        peer.node.after(0.0, self.begin)

    @property
    def side(self) -> Receiving | Sending:
        return self._side

    @property
    def transfer_id(self) -> int:
        return self._side.transfer_id

    @property
    def lives(self) -> bool:
        """Return True if this side's process is alive."""
        node = self.peer.node
        return not node.is_dead and node.life == self._life

    def now(self) -> float:
        return self.peer.node.clock()

    def stepped(self) -> None:
        now = self.now()
        at = now + self._side.wake(now)
        if self.looks_at is None or not now < self.looks_at <= at + 1e-6:
            self.looks_at = at
            self.peer.node.after(at - now, _LookAt(self, at))

    def _take(self, event: Event) -> None:
        super()._take(event)
        self.peer.checks.stepped(self, event)

    def _defect(self, error: Exception) -> on.Broke:
        raise Violation(f"{self.name}: {error!r}") from error

    def over(self, failure: Exception | None) -> None:
        self.peer.checks.ended(self, failure)
        self._closed(self)

    @property
    def pulled(self) -> int | None:
        """Return the progress of this transfer's pull; None without a pull."""
        pull = self.pull
        return None if pull is None or pull.is_over else pull.progress

    @property
    def progress(self) -> int:
        raise NotImplementedError


class _LookAt:
    __slots__ = ("_at", "_side")

    def __init__(self, side: SimulatedSide, at: float) -> None:
        self._side, self._at = side, at

    def __call__(self) -> None:
        side = self._side
        if side.looks_at == self._at and not side.is_over:
            side.looks_at = None
            side.look()


class ReceivingSide(SimulatedSide):
    _side: Receiving
    asked_to_drain = False

    @property
    def progress(self) -> int:
        return self.peer.landing.arrived(self.transfer_id)

    def facts(self) -> on.Look:
        writer = self.connection.writer_at(self.peer).facts()
        return on.Look(self.progress, self.pulled, pieces=self.pieces, writer=writer)

    def perform(self, action: Action) -> Event | None:
        peer = self.peer
        peer.checks.performs(self, action)
        match action:
            case do.Expect(destination=destination):
                peer.landing.expect(self.transfer_id, self._side.generation, destination)
            case do.Forget():
                peer.landing.forget(self.transfer_id)
            case do.Verify():
                return self._verify(action)
            case do.Prepare(payload=payload):
                return on.Prepared(payload)
            case do.Sever(reason=reason):
                self._sever(reason)
            case do.CallForDrain():
                self.asked_to_drain = True
                self.connection.call_for_drain(self)
            case do.GiveUp():
                peer.checks.gives_up(self, self.asked_to_drain)
                self.connection.lose(peer)
            case do.EndPull(reason=reason):
                if self.pull is not None:
                    self.pull.put(on.Stopped(reason))
            case do.Say(message=say.Abort() | say.StopPull()):
                self.asked_to_drain = True
                return self.tell(action)
            case _:
                return self.tell(action)
        return None

    def _verify(self, action: do.Verify) -> Event | None:
        """Compare a transfer's digests at once. A busy node reports the result later."""
        peer = self.peer
        verified = peer.landing.verify(self.transfer_id, self._side.generation, action.sent)
        if verified is None:
            peer.node.after(0.01, lambda: self._verify_later(action, peer.node.clock()))
        elif peer.world.random.random() < _BUSY_SHARE:
            peer.node.after(peer.world.between(0.0, _BUSY), lambda: self.put(verified))
        else:
            return verified
        return None

    def _verify_later(self, action: do.Verify, since: float) -> None:
        verified = self.peer.landing.verify(self.transfer_id, self._side.generation, action.sent)
        if verified is not None:
            self.put(verified)
        elif self.now() - since > LANDING:
            self.put(on.Verified("windows have not landed"))
        else:
            self.peer.node.after(0.1, lambda: self._verify_later(action, since))

    def _sever(self, reason: FenceReason) -> None:
        self.peer.checks.severing(self, reason)
        if reason is FenceReason.DRAIN_ACKNOWLEDGED:
            is_busy = self.peer.world.random.random() < _BUSY_SHARE
            self.peer.node.after(_BUSY * is_busy, lambda: self.put(on.Severed(reason)))
            return
        self.peer.sever(only_dead=reason is FenceReason.WRITER_DEAD)
        self.peer.node.after(0.02, lambda: self.put(on.Severed(reason)))


class SendingSide(SimulatedSide):
    _side: Sending

    @property
    def progress(self) -> int:
        return self.peer.leaving.progress(self.transfer_id)

    def facts(self) -> on.Look:
        return on.Look(self.progress, self.pulled, pieces=self.pieces)

    def perform(self, action: Action) -> Event | None:
        peer = self.peer
        peer.checks.performs(self, action)
        match action:
            case do.Say(message=message):
                peer.checks.said(self, message)
                return self.tell(action)
            case do.Open(destination=destination):
                name, generation = self.connection.name, self._side.generation
                peer.leaving.open(self.transfer_id, generation, name, destination, self.put)
                return on.Opened()
            case do.DrainNow():
                peer.leaving.abort(self.transfer_id, self.connection.name, self._drained)
            case do.EndPull(reason=reason):
                if self.pull is not None:
                    self.pull.put(on.Stopped(reason))
            case _:
                return self.tell(action)
        return None

    def _drained(self, drain: Drain) -> None:
        self.peer.node.after(0.0, lambda: self.put(on.Drained(drain)))

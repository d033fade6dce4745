"""Two simulated nodes: their connection and its heartbeat, their handling of transfers, and how
each loses the other.

The state machines are the real ones: sides of transfers, heartbeat, leases, ended transfers. The
engines are cheap stand-ins (desks.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.fence import FenceTerms, WriterFacts
from tasuki.transfer.lifecycle.heartbeats import Beating, HeartbeatTimeout, Renewing
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.reports import Drain

from .bytes import LEASE, RETRY, SETTLE, Arena, Arrivals, Leaving
from .sides import SimulatedSide
from .world import Channel, Fault, Link, Node, World

if TYPE_CHECKING:
    from .checks import Checks

BEAT, SILENCE = 0.2, 3.0
ACKNOWLEDGE, PATIENCE = 3.0, 10.0
_ELSEWHERE = ProcessIdentity("another host", 0, 0, 0)


class Peer:
    """One of the two nodes, in its present life (the time between restarts). desk: handles the
    transfers' messages there."""

    def __init__(self, world: World, node: Node, checks: "Checks", ids: int) -> None:
        self.world = world
        self.node = node
        self.checks = checks
        self.ids = ids
        self.sides: set[SimulatedSide] = set()
        self.connection: Connection | None = None
        self.others: Peer
        self.begin()

    def begin(self) -> None:
        """Start the node's life with empty memory."""
        self.arena = Arena(self.ids)
        self.landing = Arrivals(self.node, self.arena)
        self.leaving = Leaving(self.node, self.arena, self._arrivals_of, self.checks.chunk_fault)

    def _arrivals_of(self, name: str) -> Arrivals | None:
        connection = self.checks.connections.get(name)
        if connection is None or connection.severed:
            return None
        return connection.other(self).landing

    def die(self) -> None:
        self.node.is_dead = True
        self.node.life += 1
        for side in list(self.sides):
            self.checks.died(side)
        self.sides.clear()
        self.connection = None

    def sever(self, only_dead: bool) -> None:
        """Break the connections to this node, so no write arrives over them. A connection's owner
        is known only once it is dead. only_dead: True breaks the connections of dead owners; False
        breaks connections to living writers too."""
        if not only_dead and self.connection is not None:
            self.connection.lose(self)
        for connection in self.checks.connections.values():
            dead = connection.other(self).node.life != connection.lives[connection.other(self)]
            if not only_dead or dead:
                connection.severed = True
        self.landing.sever(only_dead)


class Connection:
    """One connection between the two nodes, and the stream of transfers on it."""

    def __init__(self, name: str, decode: Peer, prefill: Peer, link: Link, is_near: bool) -> None:
        """Connect two nodes. is_near: True if both are on one host, so a death is seen at once."""
        self.name = name
        self.decode, self.prefill = decode, prefill
        self.lives = {decode: decode.node.life, prefill: prefill.node.life}
        self.lost: dict[Peer, bool] = {decode: False, prefill: False}
        self.severed = False
        """True if writes over this connection no longer arrive."""
        self.link = link
        self.is_near = is_near
        self.drained: list[tuple[int, int, Drain]] = []
        self.stream = Stream(self)
        self._writers = {peer: self._writer(peer) for peer in (decode, prefill)}
        self._heartbeats = {
            peer: Channel(peer.world, peer.node, link) for peer in (decode, prefill)
        }
        now = prefill.node.clock()
        self._beating = Beating(HeartbeatTimeout(SILENCE, now, BEAT))
        now = decode.node.clock()
        self._renewing = Renewing(HeartbeatTimeout(SILENCE, now), now)
        decode.leaving.leases.add(name, [], decode.node.clock())
        prefill.leaving.leases.add(name, [], prefill.node.clock())

    def _writer(self, owner: Peer) -> "Writer":
        return Writer(self, owner)

    def other(self, peer: Peer) -> Peer:
        return self.prefill if peer is self.decode else self.decode

    def is_same_life(self, peer: Peer) -> bool:
        return not peer.node.is_dead and peer.node.life == self.lives[peer]

    def writer_at(self, owner: Peer) -> "Writer":
        """Return the node at the other end, as a writer into the memory of `owner`."""
        return self._writers[owner]

    # The heartbeat

    def begin_beating(self) -> None:
        self.prefill.node.after(0.0, self._heartbeat)
        self.decode.node.after(BEAT, self._tick_decode)

    def _heartbeat(self) -> None:
        prefill = self.prefill
        now = prefill.node.clock()
        if self.lost[prefill]:
            return
        if self._beating.heartbeat_timeout.tick(now):
            self.lose(prefill)
            return
        sequence, received = self._beating.heartbeat(now)
        self.writer_at(prefill).life.answering()
        self._heartbeats[self.decode].send(lambda: self._beaten(sequence, received))
        prefill.node.after(BEAT, self._heartbeat)

    def _beaten(self, sequence: int, received: int) -> None:
        decode = self.decode
        if self.lost[decode] or not self.is_same_life(decode):
            return
        try:
            asked = self._renewing.heartbeat(sequence, received, decode.node.clock())
        except PeerInvalid:
            self.lose(decode)
            return
        if asked is not None:
            decode.leaving.leases.renew(self.name, asked)
        self.writer_at(decode).life.answering()
        drained, self.drained = self.drained, []
        self._heartbeats[self.prefill].send(lambda: self._renewed(sequence, drained))

    def _renewed(self, sequence: int, drained: list[tuple[int, int, Drain]]) -> None:
        prefill = self.prefill
        if self.lost[prefill] or not self.is_same_life(prefill):
            return
        asked = self._beating.renewed(sequence, prefill.node.clock())
        for transfer_id, generation, drain in drained:
            prefill.checks.prefill_desk.pull_drained(transfer_id, generation, drain)
        if asked is not None:
            prefill.leaving.leases.renew(self.name, asked)

    def _tick_decode(self) -> None:
        if self.lost[self.decode]:
            return
        if self._renewing.heartbeat_timeout.tick(self.decode.node.clock()):
            self.lose(self.decode)
            return
        self.decode.node.after(BEAT, self._tick_decode)

    def lose(self, peer: Peer) -> None:
        """Give up the connection at the end of `peer`. The other node sees the streams end, unless
        the network is silent. Idempotent."""
        if self.lost[peer] or not self.is_same_life(peer):
            return
        self.lost[peer] = True
        self.writer_at(peer).life.lose()
        peer.leaving.disconnect(self.name)
        if peer.connection is self:
            peer.connection = None
        self.stream.broke_at(peer, "the connection is lost")
        other = self.other(peer)
        self._heartbeats[other].send(lambda: self.lose(other))

    def seen_dead(self, peer: Peer) -> None:
        """Handle, at the end of `peer`, the death of the other process: its sockets are closed."""
        other = self.other(peer)
        self._heartbeats[peer].send(
            lambda: self.lose(peer) if not self.is_same_life(other) else None
        )

    # Calls beside the stream

    def call(self, peer: Peer, happens: Callable[[], None]) -> None:
        """Let a call of `peer` happen at the other node, unless the connection is lost."""
        if not self.lost[peer]:
            self._heartbeats[self.other(peer)].send(happens)

    def call_for_drain(self, side: SimulatedSide) -> None:
        """Send the abort call for a transfer over the current connection. Its answer comes after
        the drain."""
        peer, now = side.peer, side.peer.connection
        if now is None or now.lost[peer]:
            peer.node.after(0.01, lambda: side.put(on.DrainAnswered(None)))
            return
        answered = _Answer(side)
        peer.node.after(ACKNOWLEDGE, lambda: answered(None))
        transfer_id, generation, name = side.transfer_id, side.side.generation, self.name
        back = now._heartbeats[peer]
        now._heartbeats[now.other(peer)].send(
            lambda: peer.checks.prefill_desk.abort(
                name, transfer_id, generation, lambda drain: back.send(lambda: answered(drain))
            )
        )


class _Answer:
    """The answer to an abort call. Only the first answer counts; the call's deadline gives one
    too."""

    def __init__(self, side: SimulatedSide) -> None:
        self._side: SimulatedSide | None = side

    def __call__(self, drain: Drain | None) -> None:
        side, self._side = self._side, None
        if side is not None and side.lives:
            side.put(on.DrainAnswered(drain))


class Writer:
    """A `control.writer_life.WriterLife` of a simulated process, watched by the simulation."""

    def __init__(self, connection: Connection, owner: Peer) -> None:
        self.life = WriterLife(_ELSEWHERE, LEASE, RETRY, SETTLE, owner.node.clock)
        self._connection = connection
        self._owner = owner
        self._died: float | None = None

    def facts(self) -> WriterFacts:
        facts, connection = self.life.facts(), self._connection
        is_dead = not connection.is_same_life(connection.other(self._owner))
        if connection.is_near and is_dead and self._died is None:
            self._died = self._owner.node.clock()
        return replace(facts, died=self._died)

    def terms(self) -> FenceTerms:
        terms = self.life.terms(ACKNOWLEDGE, PATIENCE)
        return replace(terms, look=0.1)


@dataclass
class _Line:
    transfer_id: int
    hear: Callable[[say.Message | on.StreamBroke], None]


class Stream:
    """The stream of a connection's transfers: both directions, messages of each in order."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.over: dict[Peer, bool] = {connection.decode: False, connection.prefill: False}
        self._lines: dict[int, _Line] = {}
        link = connection.link
        self._to = {
            peer: Channel(peer.world, peer.node, link)
            for peer in (connection.decode, connection.prefill)
        }

    @property
    def is_open(self) -> bool:
        return not any(self.over.values())

    def join(self, transfer_id: int, hear: Callable[[say.Message | on.StreamBroke], None]) -> None:
        """Open the decode node's end of a transfer. hear: receives its messages. At times a reused
        transfer id brings messages of an earlier transfer."""
        self._lines[transfer_id] = _Line(transfer_id, hear)
        decode = self.connection.decode
        random = decode.world.random
        for message in decode.checks.last_words.pop(transfer_id, ()):
            if decode.checks.doubles and random.random() < 0.5:
                deliver = partial(self._heard, transfer_id, message, "")
                decode.node.take(decode.world.now + random.uniform(0.05, 0.5), deliver)

    def leave(self, transfer_id: int) -> None:
        """Close the decode node's end of a transfer, and tell the prefill node."""
        if self._lines.pop(transfer_id, None) is not None:
            self.say_up(transfer_id, None)

    def say_up(self, transfer_id: int, message: say.Message | None, opening: object = None) -> None:
        """Send a transfer's message to the prefill node. message: None hangs up. opening: the
        request, with a transfer's first message."""
        connection = self.connection
        if self.over[connection.decode]:
            return
        fault = connection.decode.checks.message_fault(transfer_id)
        if fault is Fault.CUT:
            self.cut()
            return
        desk = connection.decode.checks.prefill_desk
        self._to[connection.prefill].send(
            lambda: desk.hear(self, transfer_id, message, opening), fault
        )

    def say_down(self, transfer_id: int, message: say.Message | None, reason: str = "") -> None:
        """Send a transfer's message to the decode node. message: None closes the transfer."""
        connection = self.connection
        if self.over[connection.prefill]:
            return
        fault = connection.decode.checks.message_fault(transfer_id)
        if fault is Fault.CUT:
            self.cut()
            return
        if fault is Fault.DUPLICATION and isinstance(message, say.PullAsked):
            # A Pull has no transfer request, so a repeated request is answered in the same way.
            fault = None
        if isinstance(message, say.Done | say.Ended):
            connection.decode.checks.last_words[transfer_id] = [message]
        self._to[connection.decode].send(lambda: self._heard(transfer_id, message, reason), fault)

    def _heard(self, transfer_id: int, message: say.Message | None, reason: str) -> None:
        decode = self.connection.decode
        if self.over[decode] or not self.connection.is_same_life(decode):
            return
        line = self._lines.get(transfer_id)
        if line is None:
            return
        if message is None:
            del self._lines[transfer_id]
            line.hear(on.StreamBroke(f"the prefill node closed the transfer: {reason}"))
        else:
            line.hear(message)

    def cut(self) -> None:
        """End the stream at both nodes."""
        for transfer_id in self._lines:
            self.connection.decode.checks.strike(Fault.CUT, transfer_id)
        for peer in self.over:
            self._to[peer].send(_Broke(self, peer))

    def broke_at(self, peer: Peer, reason: str) -> None:
        """End the stream at the end of `peer`. Idempotent."""
        if self.over[peer]:
            return
        self.over[peer] = True
        connection = self.connection
        if peer is connection.decode:
            lines, self._lines = self._lines, {}
            for line in lines.values():
                line.hear(on.StreamBroke(reason))
        else:
            peer.checks.prefill_desk.stream_lost(self)


@dataclass
class _Broke:
    stream: Stream
    peer: Peer

    def __call__(self) -> None:
        self.stream.broke_at(self.peer, "the stream broke")

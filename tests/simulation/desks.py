"""Each simulated node's handling of transfers, and its cheap engine. The engine grants, pins,
computes and answers at random times, and accounts for its page and slot ids."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.errors import TransferError
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.deadlines import (
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
    SenderDeadlines,
)
from tasuki.transfer.lifecycle.ended_transfers import EndedTransfers
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.sending import Sending, SendingTerms
from tasuki.transfer.lifecycle.states import COPY, FETCH, HANDOVER, PULL, Kind
from tasuki.transfer.reports import Drain

from .peers import Connection, Peer, Stream
from .sides import ReceivingSide, SendingSide, SimulatedSide
from .world import Fault, Violation

PIECES = 3
"""Number of pieces of a prompt's pictures."""
IDS = 3
"""Number of ids of a transfer: two pages and a slot."""


class Outcome(Enum):
    HANDED_OVER = "its prefix came, and its answer is right"
    HERE = "computed where it was asked, since the transfer was refused or lost"
    GONE = "its client left"
    DEAD = "its node died"


@dataclass
class Request:
    """A decode node's request for a transfer. offers: True if the decode node holds a prefix the
    sender may pull. held: ids of this prefix. outcome: None until its end. has_pictures: True if
    the sender needs pictures of the prompt.
    """

    kind: Kind
    transfer_id: int
    generation: int
    offers: bool
    held: tuple[int, ...] | None = None
    outcome: Outcome | None = None
    has_pictures: bool = False
    faults: list[tuple[Fault, int]] = field(default_factory=list)
    """Faults still to come, each with the number of the message or layer chunk it hits."""


def destination_of(ids: tuple[int, ...]) -> Destination:
    return Destination(0, ids[:-1], ids[-1]) if ids else Destination(0, (), None)


def require_whole(peer: Peer, transfer_id: int, generation: int, ids: tuple[int, ...]) -> None:
    for sequence, each in enumerate(ids):
        content = peer.arena.content[each]
        if content != (transfer_id, generation, sequence):
            raise Violation(f"transfer {transfer_id} is committed with {content} in id {each}")


class DecodeDesk:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.deadlines = ReceiverDeadlines()
        self.pull_deadlines = PullSenderDeadlines()
        self.begin()

    def begin(self) -> None:
        self.requests: dict[int, Request] = {}
        self.transfers: dict[int, ReceivingSide] = {}
        self.pulls: dict[int, SendingSide] = {}
        self.granted: dict[int, tuple[int, ...]] = {}
        self.quarantined: dict[int, tuple[int, ...]] = {}
        self.memory = True
        """False if this node has no memory for a destination."""

    def ask(self, request: Request) -> None:
        peer = self.peer
        if request.transfer_id in self.transfers or request.transfer_id in self.quarantined:
            self._end(request, Outcome.HERE)
            return
        connection = peer.connection
        if connection is None or connection.lost[peer]:
            self._end(request, Outcome.HERE)
            return
        if request.offers:
            request.held = peer.arena.take(IDS, ("held", request.transfer_id))
        self.requests[request.transfer_id] = request
        if not connection.stream.is_open:
            connection.stream = Stream(connection)
        stream = connection.stream
        fence = connection.writer_at(peer).terms()
        within = 6.0 if request.kind is FETCH else None
        terms = ReceivingTerms(self.deadlines, fence, within)
        now = peer.node.clock()
        side = Receiving(request.kind, request.transfer_id, request.generation, terms, now)

        def tell(action: Action) -> Event | None:
            return self._tell(request, stream, action)

        def closed(ended: SimulatedSide) -> None:
            self._over(request, stream)

        transfer = ReceivingSide(side, peer, connection, stream, tell, closed)
        self.transfers[request.transfer_id] = transfer
        stream.join(request.transfer_id, transfer.put)
        if any(fault is Fault.CANCEL for fault, _ in request.faults):
            peer.node.after(peer.world.between(0.0, 0.5), lambda: self._cancel(request))

    def _tell(self, request: Request, stream: Stream, action: Action) -> Event | None:
        peer, transfer_id = self.peer, request.transfer_id
        match action:
            case do.Say(message=message):
                stream.say_up(transfer_id, message, request)
            case do.WantGrant():
                seconds = peer.world.between(0.0, 0.05)
                peer.node.after(seconds, lambda: self._grant(request))
            case do.TellReady(payload=token):
                peer.checks.ready(transfer_id, request.generation, token)
            case do.TellRefused():
                self._end(request, Outcome.HERE)
            case do.TellLost():
                peer.checks.told_lost(f"transfer {transfer_id}", request.generation)
                self._quarantine(transfer_id)
                self._end(request, Outcome.HERE)
            case do.Commit():
                self._commit(request)
            case do.TellFenced():
                ids = self.quarantined.pop(transfer_id, ())
                peer.arena.give_back(ids, ("quarantined", transfer_id))
            case do.SendMedia():
                self._send_piece(request, stream, 1)
            case do.ServePull(payload=(generation, destination)):
                self._serve(request, stream, generation, destination)
        return None

    def _send_piece(self, request: Request, stream: Stream, number: int) -> None:
        """Send a piece of the request's pictures by a call of its own, and the next one after it. A
        few calls send nothing more."""
        peer, side = self.peer, self.transfers.get(request.transfer_id)
        if side is None or request.outcome is not None or peer.world.random.random() < 0.02:
            return
        connection = stream.connection
        connection.call(
            peer,
            lambda: peer.checks.prefill_desk.piece(
                connection, request.transfer_id, request.generation, number
            ),
        )
        side.pieces += 1
        if number < PIECES:
            seconds = peer.world.between(0.0, 0.3)
            peer.node.after(seconds, lambda: self._send_piece(request, stream, number + 1))

    def _grant(self, request: Request) -> None:
        peer, transfer_id = self.peer, request.transfer_id
        side = self.transfers.get(transfer_id)
        if request.outcome is not None:
            return
        if any(fault is Fault.FULL for fault, _ in request.faults):
            if peer.world.random.random() < 0.5 and side is not None:
                side.put(on.Declined())
            return
        ids: tuple[int, ...] | None = ()
        if request.kind.brings:
            ids = peer.arena.take(IDS, ("granted", transfer_id))
            if ids is None:
                peer.node.after(0.5, lambda: self._grant(request))
                return
        self.granted[transfer_id] = ids or ()
        if side is None or side.is_over:
            # The transfer was lost meanwhile, and its sender never saw the grant.
            peer.arena.give_back(self.granted.pop(transfer_id), ("granted", transfer_id))
            return
        side.put(say.Grant(request.generation, destination_of(ids or ())))

    def _quarantine(self, transfer_id: int) -> None:
        ids = self.granted.pop(transfer_id, None)
        if ids is not None:
            self.peer.arena.pass_on(ids, ("granted", transfer_id), ("quarantined", transfer_id))
            self.quarantined[transfer_id] = ids

    def _commit(self, request: Request) -> None:
        peer, transfer_id = self.peer, request.transfer_id
        ids = self.granted.pop(transfer_id)
        require_whole(peer, transfer_id, request.generation, ids)
        peer.arena.pass_on(ids, ("granted", transfer_id), ("working", transfer_id))
        arena = peer.arena
        peer.node.after(
            peer.world.between(0.1, 2.0), lambda: arena.give_back(ids, ("working", transfer_id))
        )
        peer.checks.committed(f"transfer {transfer_id}", request.generation)
        self._end(request, Outcome.HANDED_OVER)

    def _cancel(self, request: Request) -> None:
        if request.outcome is not None:
            return
        side = self.transfers.get(request.transfer_id)
        self._quarantine(request.transfer_id)
        self._end(request, Outcome.GONE)
        if side is not None:
            side.put(on.Cancelled())

    def _end(self, request: Request, outcome: Outcome) -> None:
        self.peer.checks.answered(request, outcome)

    def _over(self, request: Request, stream: Stream) -> None:
        transfer_id = request.transfer_id
        self.transfers.pop(transfer_id, None)
        stream.leave(transfer_id)
        pull = self.pulls.get(transfer_id)
        if pull is not None:
            pull.put(on.Stopped("its transfer is over"))
        self.requests.pop(transfer_id, None)
        if request.held is not None and pull is None:
            self.peer.arena.give_back(request.held, ("held", transfer_id))
            request.held = None

    # Pulls

    def _serve(
        self, request: Request, stream: Stream, generation: int, destination: Destination
    ) -> None:
        peer, transfer_id = self.peer, request.transfer_id
        connection = stream.connection
        terms = SendingTerms(self.pull_deadlines, self.pull_deadlines.look)
        sending = Sending(PULL, transfer_id, generation, terms, peer.node.clock())
        sending.target(destination)

        def tell(action: Action) -> Event | None:
            match action:
                case do.Reserve():
                    seconds = peer.world.between(0.0, 0.05)
                    peer.node.after(seconds, lambda: self._pin(request))
                case do.Plan(payload=source):
                    peer.leaving.plan(transfer_id, source)
                case do.Say(message=message):
                    stream.say_up(transfer_id, message, request)
            return None

        def closed(ended: SimulatedSide) -> None:
            connection.drained.append((transfer_id, generation, sending.drain))
            if sending.drain is Drain.FORCED:
                peer.leaving.let_go(transfer_id)
            del self.pulls[transfer_id]
            if request.held is not None and transfer_id not in self.transfers:
                peer.arena.give_back(request.held, ("held", transfer_id))
                request.held = None

        side = SendingSide(sending, peer, connection, stream, tell, closed)
        self.pulls[transfer_id] = side
        self.transfers[transfer_id].pull = side

    def _pin(self, request: Request) -> None:
        side = self.pulls.get(request.transfer_id)
        if side is None or self.peer.world.random.random() < 0.02:
            # The node's own engine sends nothing.
            return
        if request.held is None or self.peer.world.random.random() < 0.05:
            side.put(on.Refusal("evicted"))
        else:
            side.put(on.Pinned(request.held))


@dataclass
class _Computed:
    """A transfer at the prefill node. source: ids of its computed pages and slot; None before their
    allocation. pull_tried: True if no further pull may be tried for it. sees: True once its
    pictures came."""

    request: Request
    stream: Stream
    source: tuple[int, ...] | None = None
    pull_tried: bool = False
    sees: bool = False


class PrefillDesk:
    def __init__(self, peer: Peer, lives: Callable[[str], bool]) -> None:
        self.peer = peer
        self.deadlines = SenderDeadlines()
        self.pull_deadlines = PullReceiverDeadlines()
        self._lives = lives
        self.begin()

    def begin(self) -> None:
        self.transfers: dict[int, SendingSide] = {}
        self.pulls: dict[tuple[int, int], ReceivingSide] = {}
        self.pulled: dict[tuple[int, int], tuple[int, ...]] = {}
        self.ended = EndedTransfers(self._lives)
        self._streams: dict[Stream, dict[int, SendingSide]] = {}
        self._computed: dict[int, _Computed] = {}
        self._waiting: dict[int, list[Callable[[Drain], None]]] = {}
        self._pull_generations = 0

    def hear(
        self, stream: Stream, transfer_id: int, message: say.Message | None, opening: object
    ) -> None:
        """Receive a message from the stream of transfers, like a prefill node. message: None if the
        decode node hung up. opening: the request, in a transfer's first message."""
        if stream.over[self.peer] or stream.connection.lost[self.peer]:
            return
        side = self._streams.setdefault(stream, {}).get(transfer_id)
        if side is None:
            if isinstance(message, say.Ask) and isinstance(opening, Request):
                self._open(stream, opening)
            return
        match message:
            case None:
                side.put(on.ReceiverLost())
            case say.Ask():
                side.put(on.Stopped("reserve is not expected on a transfer that is open"))
            case say.Done() | say.Ended():
                if side.pull is not None:
                    side.pull.put(message)
            case _:
                side.put(message)

    def _open(self, stream: Stream, request: Request) -> None:
        peer, transfer_id, generation = self.peer, request.transfer_id, request.generation
        connection = stream.connection
        refusal = self.ended.refusal(
            connection.name, transfer_id, generation, transfer_id in self.transfers
        )
        if refusal is not None:
            stream.say_down(transfer_id, None, refusal)
            return
        terms = SendingTerms(self.deadlines, 1.0)
        sending = Sending(request.kind, transfer_id, generation, terms, peer.node.clock())
        computed = _Computed(request, stream)

        def tell(action: Action) -> Event | None:
            return self._tell(computed, action)

        def closed(ended: SimulatedSide) -> None:
            self._over(computed, connection, sending)

        side = SendingSide(sending, peer, connection, stream, tell, closed)
        self.transfers[transfer_id] = self._streams[stream][transfer_id] = side
        self._computed[transfer_id] = computed

    def _tell(self, computed: _Computed, action: Action) -> Event | None:
        peer, transfer_id = self.peer, computed.request.transfer_id
        match action:
            case do.Say(message=message):
                computed.stream.say_down(transfer_id, message)
            case do.Reserve():
                seconds = peer.world.between(0.0, 0.1)
                peer.node.after(seconds, lambda: self._admit(computed))
                if peer.world.random.random() < 0.3:
                    peer.node.after(seconds / 2, lambda: self._move(computed))
            case do.Start():
                self._compute(computed)
            case do.TakeMedia():
                computed.sees = True
                peer.node.after(0.0, lambda: self._admit(computed))
            case do.BeginPull(payload=ids):
                self._begin_pull(computed, ids)
        return None

    def piece(self, connection: Connection, transfer_id: int, generation: int, number: int) -> None:
        """Take a piece of a prompt's pictures. The last one, behind all others, completes them."""
        side = self.transfers.get(transfer_id)
        if side is None or side.connection is not connection or connection.lost[self.peer]:
            return
        if side.side.generation != generation or side.pieces != number - 1:
            return
        side.pieces = number
        if number == PIECES:
            side.put(on.MediaCame(()))

    def _side(self, computed: _Computed) -> SendingSide | None:
        side = self.transfers.get(computed.request.transfer_id)
        return side if self._computed.get(computed.request.transfer_id) is computed else None

    def _move(self, computed: _Computed) -> None:
        if (side := self._side(computed)) is not None:
            side.put(on.Moved(self.peer.world.random.randrange(3)))

    def _admit(self, computed: _Computed) -> None:
        """Admit a transfer in the prefill engine: pull first, then allocate. With a fault it does
        neither."""
        peer, request, side = self.peer, computed.request, self._side(computed)
        if side is None or computed.source is not None:
            return
        chance = peer.world.random.random()
        if any(fault is Fault.FULL for fault, _ in request.faults) and chance < 0.5:
            if chance < 0.25:
                return
            side.put(on.Refusal("no place", is_late=True))
            return
        if request.offers and not computed.pull_tried:
            computed.pull_tried = True
            ids = peer.arena.take(IDS, ("pull", request.transfer_id))
            if ids is not None:
                side.put(on.PullWanted(ids))
                return
        if request.has_pictures and not computed.sees:
            side.put(on.MediaWanted(()))
            return
        computed.source = peer.arena.take(IDS, ("computed", request.transfer_id))
        if computed.source is None:
            peer.node.after(0.5, lambda: self._admit(computed))
        elif request.kind is FETCH and chance > 0.95:
            side.put(on.Refusal("not held"))
        else:
            side.put(on.Leased())

    def _compute(self, computed: _Computed) -> None:
        peer, request = self.peer, computed.request
        transfer_id, source = request.transfer_id, computed.source or ()
        chance = peer.world.random.random()
        if chance < 0.02:
            # The forward breaks, or never ends.
            if chance < 0.01 and request.kind is not FETCH:
                peer.node.after(0.05, lambda: self._announce(computed, on.Refusal("it broke")))
            return
        first, second = sorted((peer.world.between(0.0, 0.2), peer.world.between(0.0, 0.2)))
        word = on.Announced(request.generation)
        peer.node.after(first, lambda: peer.leaving.plan(transfer_id, source))
        peer.node.after(second, lambda: self._announce(computed, word))

    def _announce(self, computed: _Computed, word: Event) -> None:
        if (side := self._side(computed)) is not None:
            side.put(word)

    def _over(self, computed: _Computed, connection: Connection, sending: Sending) -> None:
        peer, transfer_id = self.peer, computed.request.transfer_id
        del self.transfers[transfer_id]
        del self._computed[transfer_id]
        if sending.drain is Drain.FORCED:
            peer.leaving.let_go(transfer_id)
        if computed.source is not None:
            peer.arena.give_back(computed.source, ("computed", transfer_id))
        self.ended.remember(connection.name, transfer_id, sending.generation, sending.drain)
        for answer in self._waiting.pop(transfer_id, ()):
            answer(sending.drain)
        computed.stream.say_down(transfer_id, None)
        self._streams.get(computed.stream, {}).pop(transfer_id, None)
        if sending.drain is Drain.FORCED or sending.endpoint_failed:
            connection.lose(peer)

    def abort(
        self, name: str, transfer_id: int, generation: int, answer: Callable[[Drain | None], None]
    ) -> None:
        """Handle the abort call of a transfer. name: name of the connection. answer: receives the
        drain."""
        if not self.ended.knows(name):
            answer(None)
            return
        side = self.transfers.get(transfer_id)
        if side is not None and side.connection.name == name and side.side.generation == generation:
            self._waiting.setdefault(transfer_id, []).append(answer)
            side.put(say.Abort())
        else:
            answer(self.ended.aborted(name, transfer_id, generation))

    def stream_lost(self, stream: Stream) -> None:
        for side in list(self._streams.pop(stream, {}).values()):
            side.put(on.ReceiverLost())

    # Pulls

    def _begin_pull(self, computed: _Computed, ids: tuple[int, ...]) -> None:
        peer, transfer_id, stream = self.peer, computed.request.transfer_id, computed.stream
        connection = stream.connection
        self._pull_generations += 1
        generation = self._pull_generations
        if connection.lost[peer]:
            peer.arena.give_back(ids, ("pull", transfer_id))
            peer.node.after(0.0, lambda: self._admit(computed))
            return
        fence = connection.writer_at(peer).terms()
        terms = ReceivingTerms(self.pull_deadlines, fence)
        receiving = Receiving(PULL, transfer_id, generation, terms, peer.node.clock())
        receiving.grant_first(say.Grant(generation, destination_of(ids)))
        key = transfer_id, generation

        def tell(action: Action) -> Event | None:
            match action:
                case do.Say(message=say.Ask()):
                    asked = say.PullAsked((generation, destination_of(ids)))
                    stream.say_down(transfer_id, asked)
                case do.Say(message=message):
                    stream.say_down(transfer_id, message)
                case do.Commit():
                    require_whole(peer, transfer_id, generation, ids)
                    peer.arena.give_back(self.pulled.pop(key), ("pull", transfer_id))
                    peer.checks.committed(f"pull {transfer_id}", generation, peer.node.life)
                    self._admit(computed)
                case do.TellLost():
                    peer.checks.told_lost(f"pull {transfer_id}", generation, peer.node.life)
                    self._admit(computed)
                case do.TellFenced():
                    peer.arena.give_back(self.pulled.pop(key), ("pull", transfer_id))
            return None

        def closed(ended: SimulatedSide) -> None:
            del self.pulls[key]

        try:
            side = ReceivingSide(receiving, peer, connection, stream, tell, closed)
        except TransferError:
            peer.arena.give_back(ids, ("pull", transfer_id))
            return
        self.pulls[key] = side
        self.pulled[key] = ids
        self.transfers[transfer_id].pull = side

    def pull_drained(self, transfer_id: int, generation: int, drain: Drain) -> None:
        """Handle a drain of a pull, reported by a heartbeat's renewal."""
        pull = self.pulls.get((transfer_id, generation))
        if pull is not None:
            pull.put(on.DrainAnswered(drain))


KINDS_OF_REQUESTS = (HANDOVER, HANDOVER, FETCH, COPY)

"""Each simulated node's handling of transfers, and its cheap engine: it grants, pins, computes and
answers at random times, and accounts for its ids."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from tasuki.transfer.errors import TransferError
from tasuki.transfer.reports import Drain
from tasuki.transfer.rooms import actions as do
from tasuki.transfer.rooms import events as on
from tasuki.transfer.rooms import messages as say
from tasuki.transfer.rooms.actions import Action
from tasuki.transfer.rooms.deadlines import (
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
    SenderDeadlines,
)
from tasuki.transfer.rooms.ended_rooms import EndedRooms
from tasuki.transfer.rooms.events import Event
from tasuki.transfer.rooms.receiving import Receiving, ReceivingTerms
from tasuki.transfer.rooms.sending import Sending, SendingTerms
from tasuki.transfer.rooms.states import COPY, FETCH, HANDOVER, PULL, Kind
from tasuki.transfer.windows.window import Destination

from .peers import Connection, Peer, Stream
from .sides import ReceivingSide, SendingSide, SimulatedSide
from .world import Fault, Violation

IDS = 3
"""Ids of a transfer: two pages and a slot."""


class Outcome(Enum):
    HANDED_OVER = "its prefix came, and its answer is right"
    HERE = "computed where it was asked, since the transfer was refused or lost"
    GONE = "its client left"
    DEAD = "its node died"


@dataclass
class Request:
    """A request of a decode node. offers: it holds a prefix that the sender may pull."""

    kind: Kind
    room: int
    generation: int
    offers: bool
    held: tuple[int, ...] | None = None
    outcome: Outcome | None = None
    faults: list[tuple[Fault, int]] = field(default_factory=list)
    """Faults still to come, each with the number of its message or layer chunk."""


def destination_of(ids: tuple[int, ...]) -> Destination:
    return Destination(0, ids[:-1], ids[-1]) if ids else Destination(0, (), None)


def require_whole(peer: Peer, room: int, generation: int, ids: tuple[int, ...]) -> None:
    for sequence, each in enumerate(ids):
        content = peer.arena.content[each]
        if content != (room, generation, sequence):
            raise Violation(f"room {room} is committed with {content} in id {each}")


class DecodeDesk:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.deadlines = ReceiverDeadlines()
        self.pull_deadlines = PullSenderDeadlines()
        self.begin()

    def begin(self) -> None:
        self.requests: dict[int, Request] = {}
        self.rooms: dict[int, ReceivingSide] = {}
        self.pulls: dict[int, SendingSide] = {}
        self.granted: dict[int, tuple[int, ...]] = {}
        self.quarantined: dict[int, tuple[int, ...]] = {}
        self.memory = True
        """False if there is no memory for a destination."""

    def ask(self, request: Request) -> None:
        peer = self.peer
        if request.room in self.rooms or request.room in self.quarantined:
            self._end(request, Outcome.HERE)
            return
        connection = peer.connection
        if connection is None or connection.lost[peer]:
            self._end(request, Outcome.HERE)
            return
        if request.offers:
            request.held = peer.arena.take(IDS, ("held", request.room))
        self.requests[request.room] = request
        if not connection.stream.is_open:
            connection.stream = Stream(connection)
        stream = connection.stream
        fence = connection.writer_at(peer).terms()
        within = 6.0 if request.kind is FETCH else None
        terms = ReceivingTerms(self.deadlines, fence, within)
        now = peer.node.clock()
        side = Receiving(request.kind, request.room, request.generation, terms, now)

        def tell(action: Action) -> Event | None:
            return self._tell(request, stream, action)

        def closed(ended: SimulatedSide) -> None:
            self._over(request, stream)

        room = ReceivingSide(side, peer, connection, stream, tell, closed)
        self.rooms[request.room] = room
        stream.join(request.room, room.put)
        if any(fault is Fault.CANCEL for fault, _ in request.faults):
            peer.node.after(peer.world.between(0.0, 0.5), lambda: self._cancel(request))

    def _tell(self, request: Request, stream: Stream, action: Action) -> Event | None:
        peer, room = self.peer, request.room
        match action:
            case do.Say(message=message):
                stream.say_up(room, message, request)
            case do.WantGrant():
                seconds = peer.world.between(0.0, 0.05)
                peer.node.after(seconds, lambda: self._grant(request))
            case do.TellReady(payload=token):
                peer.checks.ready(room, request.generation, token)
            case do.TellRefused():
                self._end(request, Outcome.HERE)
            case do.TellLost():
                peer.checks.told_lost(f"room {room}", request.generation)
                self._quarantine(room)
                self._end(request, Outcome.HERE)
            case do.Commit():
                self._commit(request)
            case do.TellFenced():
                ids = self.quarantined.pop(room, ())
                peer.arena.give_back(ids, ("quarantined", room))
            case do.ServePull(payload=(generation, destination)):
                self._serve(request, stream, generation, destination)
        return None

    def _grant(self, request: Request) -> None:
        peer, room = self.peer, request.room
        side = self.rooms.get(room)
        if request.outcome is not None:
            return
        if any(fault is Fault.FULL for fault, _ in request.faults):
            if peer.world.random.random() < 0.5 and side is not None:
                side.put(on.Declined())
            return
        ids: tuple[int, ...] | None = ()
        if request.kind.brings:
            ids = peer.arena.take(IDS, ("granted", room))
            if ids is None:
                peer.node.after(0.5, lambda: self._grant(request))
                return
        self.granted[room] = ids or ()
        if side is None or side.is_over:
            # The transfer was lost meanwhile, and its sender never saw the grant.
            peer.arena.give_back(self.granted.pop(room), ("granted", room))
            return
        side.put(say.Grant(request.generation, destination_of(ids or ())))

    def _quarantine(self, room: int) -> None:
        ids = self.granted.pop(room, None)
        if ids is not None:
            self.peer.arena.pass_on(ids, ("granted", room), ("quarantined", room))
            self.quarantined[room] = ids

    def _commit(self, request: Request) -> None:
        peer, room = self.peer, request.room
        ids = self.granted.pop(room)
        require_whole(peer, room, request.generation, ids)
        peer.arena.pass_on(ids, ("granted", room), ("working", room))
        arena = peer.arena
        peer.node.after(
            peer.world.between(0.1, 2.0), lambda: arena.give_back(ids, ("working", room))
        )
        peer.checks.committed(f"room {room}", request.generation)
        self._end(request, Outcome.HANDED_OVER)

    def _cancel(self, request: Request) -> None:
        if request.outcome is not None:
            return
        side = self.rooms.get(request.room)
        self._quarantine(request.room)
        self._end(request, Outcome.GONE)
        if side is not None:
            side.put(on.Cancelled())

    def _end(self, request: Request, outcome: Outcome) -> None:
        self.peer.checks.answered(request, outcome)

    def _over(self, request: Request, stream: Stream) -> None:
        room = request.room
        self.rooms.pop(room, None)
        stream.leave(room)
        pull = self.pulls.get(room)
        if pull is not None:
            pull.put(on.Stopped("its room is over"))
        self.requests.pop(room, None)
        if request.held is not None and pull is None:
            self.peer.arena.give_back(request.held, ("held", room))
            request.held = None

    # Pulls

    def _serve(
        self, request: Request, stream: Stream, generation: int, destination: Destination
    ) -> None:
        peer, room = self.peer, request.room
        connection = stream.connection
        terms = SendingTerms(self.pull_deadlines, self.pull_deadlines.look)
        sending = Sending(PULL, room, generation, terms, peer.node.clock())
        sending.target(destination)

        def tell(action: Action) -> Event | None:
            match action:
                case do.Reserve():
                    seconds = peer.world.between(0.0, 0.05)
                    peer.node.after(seconds, lambda: self._pin(request))
                case do.Plan(payload=source):
                    peer.leaving.plan(room, source)
                case do.Say(message=message):
                    stream.say_up(room, message, request)
            return None

        def closed(ended: SimulatedSide) -> None:
            connection.drained.append((room, generation, sending.drain))
            if sending.drain is Drain.FORCED:
                peer.leaving.let_go(room)
            del self.pulls[room]
            if request.held is not None and room not in self.rooms:
                peer.arena.give_back(request.held, ("held", room))
                request.held = None

        side = SendingSide(sending, peer, connection, stream, tell, closed)
        self.pulls[room] = side
        self.rooms[room].pull = side

    def _pin(self, request: Request) -> None:
        side = self.pulls.get(request.room)
        if side is None or self.peer.world.random.random() < 0.02:
            # The node's own engine sends nothing.
            return
        if request.held is None or self.peer.world.random.random() < 0.05:
            side.put(on.Refusal("evicted"))
        else:
            side.put(on.Pinned(request.held))


@dataclass
class _Computed:
    """A transfer's ids at the prefill node. pull_tried: nothing more is pulled for it."""

    request: Request
    stream: Stream
    source: tuple[int, ...] | None = None
    pull_tried: bool = False


class PrefillDesk:
    def __init__(self, peer: Peer, lives: Callable[[str], bool]) -> None:
        self.peer = peer
        self.deadlines = SenderDeadlines()
        self.pull_deadlines = PullReceiverDeadlines()
        self._lives = lives
        self.begin()

    def begin(self) -> None:
        self.rooms: dict[int, SendingSide] = {}
        self.pulls: dict[tuple[int, int], ReceivingSide] = {}
        self.pulled: dict[tuple[int, int], tuple[int, ...]] = {}
        self.ended = EndedRooms(self._lives)
        self._streams: dict[Stream, dict[int, SendingSide]] = {}
        self._computed: dict[int, _Computed] = {}
        self._waiting: dict[int, list[Callable[[Drain], None]]] = {}
        self._pull_generations = 0

    def hear(self, stream: Stream, room: int, message: say.Message | None, opening: object) -> None:
        """Take a message as the prefill node's stream of transfers does."""
        if stream.over[self.peer] or stream.connection.lost[self.peer]:
            return
        side = self._streams.setdefault(stream, {}).get(room)
        if side is None:
            if isinstance(message, say.Ask) and isinstance(opening, Request):
                self._open(stream, opening)
            return
        match message:
            case None:
                side.put(on.ReceiverLost())
            case say.Ask():
                side.put(on.Stopped("reserve is not expected on a room that is open"))
            case say.Done() | say.Ended():
                if side.pull is not None:
                    side.pull.put(message)
            case _:
                side.put(message)

    def _open(self, stream: Stream, request: Request) -> None:
        peer, room, generation = self.peer, request.room, request.generation
        connection = stream.connection
        refusal = self.ended.refusal(connection.name, room, generation, room in self.rooms)
        if refusal is not None:
            stream.say_down(room, None, refusal)
            return
        terms = SendingTerms(self.deadlines, 1.0)
        sending = Sending(request.kind, room, generation, terms, peer.node.clock())
        computed = _Computed(request, stream)

        def tell(action: Action) -> Event | None:
            return self._tell(computed, action)

        def closed(ended: SimulatedSide) -> None:
            self._over(computed, connection, sending)

        side = SendingSide(sending, peer, connection, stream, tell, closed)
        self.rooms[room] = self._streams[stream][room] = side
        self._computed[room] = computed

    def _tell(self, computed: _Computed, action: Action) -> Event | None:
        peer, room = self.peer, computed.request.room
        match action:
            case do.Say(message=message):
                computed.stream.say_down(room, message)
            case do.Reserve():
                seconds = peer.world.between(0.0, 0.1)
                peer.node.after(seconds, lambda: self._admit(computed))
                if peer.world.random.random() < 0.3:
                    peer.node.after(seconds / 2, lambda: self._move(computed))
            case do.Start():
                self._compute(computed)
            case do.BeginPull(payload=ids):
                self._begin_pull(computed, ids)
        return None

    def _side(self, computed: _Computed) -> SendingSide | None:
        side = self.rooms.get(computed.request.room)
        return side if self._computed.get(computed.request.room) is computed else None

    def _move(self, computed: _Computed) -> None:
        if (side := self._side(computed)) is not None:
            side.put(on.Moved(self.peer.world.random.randrange(3)))

    def _admit(self, computed: _Computed) -> None:
        """Admit the transfer in the engine: pull first, then allocate, or do neither."""
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
            ids = peer.arena.take(IDS, ("pull", request.room))
            if ids is not None:
                side.put(on.PullWanted(ids))
                return
        computed.source = peer.arena.take(IDS, ("computed", request.room))
        if computed.source is None:
            peer.node.after(0.5, lambda: self._admit(computed))
        elif request.kind is FETCH and chance > 0.95:
            side.put(on.Refusal("not held"))
        else:
            side.put(on.Leased())

    def _compute(self, computed: _Computed) -> None:
        peer, request = self.peer, computed.request
        room, source = request.room, computed.source or ()
        chance = peer.world.random.random()
        if chance < 0.02:
            # The forward breaks, or never ends.
            if chance < 0.01 and request.kind is not FETCH:
                peer.node.after(0.05, lambda: self._announce(computed, on.Refusal("it broke")))
            return
        first, second = sorted((peer.world.between(0.0, 0.2), peer.world.between(0.0, 0.2)))
        word = on.Announced(request.generation)
        peer.node.after(first, lambda: peer.leaving.plan(room, source))
        peer.node.after(second, lambda: self._announce(computed, word))

    def _announce(self, computed: _Computed, word: Event) -> None:
        if (side := self._side(computed)) is not None:
            side.put(word)

    def _over(self, computed: _Computed, connection: Connection, sending: Sending) -> None:
        peer, room = self.peer, computed.request.room
        del self.rooms[room]
        del self._computed[room]
        if sending.drain is Drain.FORCED:
            peer.leaving.let_go(room)
        if computed.source is not None:
            peer.arena.give_back(computed.source, ("computed", room))
        self.ended.remember(connection.name, room, sending.generation, sending.drain)
        for answer in self._waiting.pop(room, ()):
            answer(sending.drain)
        computed.stream.say_down(room, None)
        self._streams.get(computed.stream, {}).pop(room, None)
        if sending.drain is Drain.FORCED or sending.endpoint_failed:
            connection.lose(peer)

    def abort(
        self, name: str, room: int, generation: int, answer: Callable[[Drain | None], None]
    ) -> None:
        """Handle the unary abort."""
        if not self.ended.knows(name):
            answer(None)
            return
        side = self.rooms.get(room)
        if side is not None and side.connection.name == name and side.side.generation == generation:
            self._waiting.setdefault(room, []).append(answer)
            side.put(say.Abort())
        else:
            answer(self.ended.aborted(name, room, generation))

    def stream_lost(self, stream: Stream) -> None:
        for side in list(self._streams.pop(stream, {}).values()):
            side.put(on.ReceiverLost())

    # Pulls

    def _begin_pull(self, computed: _Computed, ids: tuple[int, ...]) -> None:
        peer, room, stream = self.peer, computed.request.room, computed.stream
        connection = stream.connection
        self._pull_generations += 1
        generation = self._pull_generations
        if connection.lost[peer]:
            peer.arena.give_back(ids, ("pull", room))
            peer.node.after(0.0, lambda: self._admit(computed))
            return
        fence = connection.writer_at(peer).terms()
        terms = ReceivingTerms(self.pull_deadlines, fence)
        receiving = Receiving(PULL, room, generation, terms, peer.node.clock())
        receiving.grant_first(say.Grant(generation, destination_of(ids)))
        key = room, generation

        def tell(action: Action) -> Event | None:
            match action:
                case do.Say(message=say.Ask()):
                    asked = say.PullAsked((generation, destination_of(ids)))
                    stream.say_down(room, asked)
                case do.Say(message=message):
                    stream.say_down(room, message)
                case do.Commit():
                    require_whole(peer, room, generation, ids)
                    peer.arena.give_back(self.pulled.pop(key), ("pull", room))
                    peer.checks.committed(f"pull {room}", generation, peer.node.life)
                    self._admit(computed)
                case do.TellLost():
                    peer.checks.told_lost(f"pull {room}", generation, peer.node.life)
                    self._admit(computed)
                case do.TellFenced():
                    peer.arena.give_back(self.pulled.pop(key), ("pull", room))
            return None

        def closed(ended: SimulatedSide) -> None:
            del self.pulls[key]

        try:
            side = ReceivingSide(receiving, peer, connection, stream, tell, closed)
        except TransferError:
            peer.arena.give_back(ids, ("pull", room))
            return
        self.pulls[key] = side
        self.pulled[key] = ids
        self.rooms[room].pull = side

    def pull_drained(self, room: int, generation: int, drain: Drain) -> None:
        """Handle a pull's drain reported by a renewal."""
        pull = self.pulls.get((room, generation))
        if pull is not None:
            pull.put(on.DrainAnswered(drain))


KINDS_OF_REQUESTS = (HANDOVER, HANDOVER, FETCH, COPY)

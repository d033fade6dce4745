"""One seeded random history of two simulated nodes. Transfers of all kinds begin at random, and
faults occur. At the end no transfer and no held id is left."""

from collections import Counter
from dataclasses import dataclass, field

from tasuki.transfer.lifecycle.states import COPY, FETCH, HANDOVER

from .checks import Checks
from .desks import KINDS_OF_REQUESTS, DecodeDesk, Outcome, PrefillDesk, Request
from .peers import Connection, Peer
from .world import (
    OF_CHUNKS,
    OF_MESSAGES,
    OF_NODES,
    OF_REQUESTS,
    Clock,
    Fault,
    Link,
    Node,
    Violation,
    World,
)

TRANSFERS = 60
"""Number of requests in one history."""
_GOES_ON, _PAUSE, _STRUCK = 0.85, (2.0, 9.0), 0.46
"""Requests come in bursts. The first value is the probability of another request at once. Then come
the shortest and longest seconds between bursts, and the probability of a node or network fault in a
burst."""
_IDS = 30
_REST = 350.0
"""Virtual seconds for the last transfers to end after any fault."""
_WEIGHTS = {
    **dict.fromkeys(OF_MESSAGES, 0.9),
    **dict.fromkeys(OF_CHUNKS, 1.35),
    **dict.fromkeys(OF_REQUESTS, 0.55),
    # It affects all transfers of the stream.
    Fault.CUT: 0.21,
}


@dataclass
class Tally:
    """Counts of played events. transfers: number of hand-overs and pulls. touched: number of
    transfers hit by a fault."""

    transfers: int = 0
    requested: int = 0
    touched: int = 0
    steps: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)

    def add(self, other: "Tally") -> None:
        self.transfers += other.transfers
        self.requested += other.transfers
        self.touched += other.touched
        self.steps += other.steps
        self.kinds += other.kinds
        self.faults += other.faults
        self.outcomes += other.outcomes


class SimulatedPair:
    """A simulated prefill and decode node with their handling of transfers. They connect, die and
    restart."""

    def __init__(
        self,
        world: World,
        checks: Checks,
        desks: tuple[type[DecodeDesk], type[PrefillDesk]] = (DecodeDesk, PrefillDesk),
        *,
        is_skewed: bool = False,
        is_near: bool = False,
    ) -> None:
        """Set up the two nodes. is_skewed: True if their clocks differ. is_near: True if both are
        on one host."""
        self.world = world
        self.checks = checks
        self._is_skewed = is_skewed
        self._near = is_near
        self._link = Link()
        self._connections = 0
        self.decode = self._peer("decode")
        self.prefill = self._peer("prefill")
        self.decode.others, self.prefill.others = self.prefill, self.decode
        decode_desk, prefill_desk = desks
        self.checks.decode_desk = decode_desk(self.decode)
        self.checks.prefill_desk = prefill_desk(self.prefill, self._lives)

    def _peer(self, name: str) -> Peer:
        world = self.world
        clock = Clock(world)
        if self._is_skewed:
            clock = Clock(world, world.between(-1e6, 1e6), world.between(0.99, 1.01))
        return Peer(world, Node(world, name, clock), self.checks, _IDS)

    def _lives(self, name: str) -> bool:
        connection = self.checks.connections.get(name)
        return connection is not None and not connection.lost[self.prefill]

    def _connect(self) -> None:
        """Dial from the decode node until it has a connection, and again after each loss."""
        world, decode, prefill = self.world, self.decode, self.prefill
        world.after(world.between(0.3, 0.8), self._connect)
        standing = decode.connection
        if standing is not None and not standing.lost[decode]:
            return
        silent = world.now < self._link.silent_until
        if silent or any(p.node.is_dead or p.node.is_frozen for p in (decode, prefill)):
            return
        for old in self.checks.connections.values():
            # A node that connects again has given up its old connection.
            old.lose(prefill)
        self._connections += 1
        name = f"connection-{self._connections}"
        made = Connection(name, decode, prefill, self._link, self._near)
        self.checks.connections[name] = made
        decode.connection = prefill.connection = made
        self.checks.prefill_desk.ended.began(name)
        made.begin_beating()

    def _kill(self, peer: Peer) -> None:
        checks, connection = self.checks, peer.connection
        desk = checks.decode_desk if peer is self.decode else checks.prefill_desk
        if peer is self.decode:
            for request in checks.requests:
                if request.outcome is None:
                    checks.answered(request, Outcome.DEAD)
        peer.die()
        for each in checks.connections.values():
            each.lost[peer] = True
        if connection is not None:
            connection.seen_dead(connection.other(peer))

        def again() -> None:
            peer.node.is_dead = False
            peer.begin()
            desk.begin()

        self.world.after(self.world.between(0.5, 5.0), again)

    def _look(self) -> None:
        self.checks.look()
        self.world.after(1.0, self._look)


class History(SimulatedPair):
    def __init__(self, seed: int, transfers: int = TRANSFERS) -> None:
        world = World(seed)
        checks = Checks(world)
        is_skewed, is_near = (world.random.random() < 0.5 for _ in range(2))
        checks.doubles = world.random.random() < 0.1
        super().__init__(world, checks, is_skewed=is_skewed, is_near=is_near)
        self._left = transfers
        self._generations = 0
        self._numbers: list[int] = []

    def play(self) -> Tally:
        """Play the history to its end. Raises Violation."""
        world, checks = self.world, self.checks
        world.at(0.0, self._connect)
        world.at(0.1, self._ask)
        world.at(1.0, self._look)
        while self._left:
            world.run(world.now + 1.0)
        until = world.now + _REST
        while world.now < until and (checks.lives or world.now < until - _REST + 5.0):
            world.run(world.now + 5.0)
        world.run(world.now + 40.0)
        checks.nothing_is_left()
        return Tally(
            transfers=sum(checks.kinds.values()),
            requested=len(checks.requests),
            touched=len(checks.touched),
            steps=world.steps,
            kinds=checks.kinds,
            faults=checks.struck,
            outcomes=checks.outcomes,
        )

    # Transfers

    def _ask(self) -> None:
        if not self._left:
            return
        self._left -= 1
        world = self.world
        self._generations += 1
        kind = world.random.choice(KINDS_OF_REQUESTS)
        offers = kind is COPY or (kind is not FETCH and world.random.random() < 0.4)
        request = Request(kind, self._number(), self._generations, offers)
        request.has_pictures = kind is HANDOVER and self._generations % 3 == 0
        request.faults = self._faults()
        self.checks.asked(request)
        for fault, _ in request.faults:
            if fault in OF_REQUESTS:
                self.checks.strike(fault, request.transfer_id)
        if self._is_skewed:
            self.checks.strike(Fault.SKEW, request.transfer_id)
        if self.decode.node.is_dead:
            self.checks.answered(request, Outcome.DEAD)
        else:
            self.decode.node.take(world.now, lambda: self.checks.decode_desk.ask(request))
        if self.checks.doubles:
            world.after(world.between(0.02, 0.3), self._ask)
            return
        if world.random.random() < _GOES_ON:
            world.after(world.between(0.0, 0.06), self._ask)
            return
        pause = world.between(*_PAUSE)
        world.after(pause, self._ask)
        if world.random.random() < _STRUCK:
            # While the next burst is under way.
            world.after(pause + world.between(0.0, 0.6), self._strike)

    def _number(self) -> int:
        """Return an id for a new transfer, at times an id used before, as a gateway may give it."""
        free = [n for n in self._numbers if self._is_over(n)]
        if free and self.world.random.random() < (0.95 if self.checks.doubles else 0.05):
            return self.world.random.choice(free[:3])
        self._numbers.append(len(self._numbers) + 1)
        return self._numbers[-1]

    def _is_over(self, number: int) -> bool:
        desks = self.checks.decode_desk, self.checks.prefill_desk
        request = self.checks.by_transfer[number]
        is_held = number in desks[0].quarantined or any(
            transfer_id == number for transfer_id, _ in desks[1].pulls
        )
        lives = (
            number in desks[0].transfers or number in desks[0].pulls or number in desks[1].transfers
        )
        return request.outcome is not None and not (is_held or lives)

    def _faults(self) -> list[tuple[Fault, int]]:
        random = self.world.random
        if random.random() < 0.32:
            return []
        chosen = set(
            random.choices([*_WEIGHTS], [*_WEIGHTS.values()], k=random.choice((1, 1, 2, 3)))
        )
        return [(fault, self._place(fault)) for fault in _WEIGHTS if fault in chosen]

    def _place(self, fault: Fault) -> int:
        return self.world.random.randrange(2 if fault in OF_CHUNKS else 5)

    # Nodes and links

    def _strike(self) -> None:
        """Make a node or the network fail, unless one is down already."""
        world = self.world
        fault = world.random.choice(OF_NODES)
        peer = world.random.choice((self.decode, self.prefill))
        if peer.node.is_dead or peer.node.is_frozen:
            return
        self.checks.strike_all(fault)
        match fault:
            case Fault.SILENCE:
                self._link.silent_until = world.now + world.random.choice((0.5, 2.0, 8.0, 15.0))
            case Fault.FREEZE:
                peer.node.freeze(world.random.choice((0.5, 2.0, 6.0, 12.0)))
            case Fault.DEATH:
                self._kill(peer)


def play(seed: int, transfers: int = TRANSFERS) -> Tally:
    """Play the history of a seed, and return its counts. Raises Violation naming the seed."""
    try:
        return History(seed, transfers).play()
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation

"""The world of two simulated nodes: virtual time, processes and a control channel.

Nodes freeze, die, and have different clocks. The channel loses, delays, reorders and doubles
messages.

Nothing in this module reads a clock or starts a thread: one seed plays one history, always the
same.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from itertools import count


class Fault(Enum):
    """A fault of a transfer, of its node, or of the network."""

    LOSS = "a message is lost"
    DELAY = "a message is late, and all behind it"
    REORDER = "a message is overtaken"
    DUPLICATION = "a message comes again, soon or much later"
    CUT = "the stream of rooms breaks"
    SILENCE = "the link carries nothing for a while"
    DEATH = "a node dies, and begins anew"
    FREEZE = "a node stands still"
    SKEW = "the nodes' clocks disagree and drift"
    FULL = "a queue does not move, or there is no memory"
    FLIP = "a bit flips on its way"
    CHUNK_LOST = "a window's notification is lost"
    LATE_WRITE = "a write waits in a socket"
    BROKEN_WRITE = "a write fails half-way"
    CANCEL = "the client leaves"


_AT_ONCE = 20_000
"""Largest number of events at one moment of virtual time; more are an endless loop."""
OF_MESSAGES = (Fault.LOSS, Fault.DELAY, Fault.REORDER, Fault.DUPLICATION, Fault.CUT)
OF_CHUNKS = (Fault.FLIP, Fault.CHUNK_LOST, Fault.LATE_WRITE, Fault.BROKEN_WRITE)
OF_REQUESTS = (Fault.FULL, Fault.CANCEL)
OF_NODES = (Fault.SILENCE, Fault.DEATH, Fault.FREEZE)


class Violation(BaseException):
    """A promise is broken. It is no Exception, so no driver takes it for an error of an action."""


class World:
    """Virtual time in seconds, and the events scheduled in it. seed: seed of the whole history."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        """Number of events handled so far by sides of transfers."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, happens: Callable[[], None]) -> None:
        heappush(self._events, (max(when, self.now), next(self._order), happens))

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        self.at(self.now + seconds, happens)

    def run(self, until: float) -> None:
        """Play all events up to the virtual time `until`."""
        events, since = self._events, 0
        while events and events[0][0] <= until:
            when, _, happens = heappop(events)
            since = since + 1 if when == self.now else 0
            if since > _AT_ONCE:
                raise Violation("time stands still")
            self.now = when
            happens()
        self.now = max(self.now, until)

    def between(self, least: float, most: float) -> float:
        return self.random.uniform(least, most)


@dataclass
class Clock:
    """A node's monotonic clock. offset: its seconds at the world's time 0. rate: its seconds in one
    second of the world."""

    world: World
    offset: float = 0.0
    rate: float = 1.0

    def __call__(self) -> float:
        return self.world.now * self.rate + self.offset


class Node:
    """A simulated process. Its events wait while it is frozen, and never happen after its death. A
    restarted process has a new life number."""

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.life = 0
        self.is_dead = False
        self._frozen_until = 0.0

    @property
    def is_frozen(self) -> bool:
        return self.world.now < self._frozen_until

    def freeze(self, seconds: float) -> None:
        self._frozen_until = self.world.now + seconds

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Call `happens` in this process after some seconds of its own clock."""
        self.take(self.world.now + max(0.0, seconds) / self.clock.rate, happens)

    def take(self, when: float, happens: Callable[[], None]) -> None:
        """Call `happens` in this process at the world's time `when`, or once it is no longer
        frozen."""
        self.world.at(when, _Happening(self, self.life, happens))


class _Happening:
    __slots__ = ("_happens", "_life", "_node")

    def __init__(self, node: Node, life: int, happens: Callable[[], None]) -> None:
        self._node, self._life, self._happens = node, life, happens

    def __call__(self) -> None:
        node = self._node
        if node.is_dead or node.life != self._life:
            return
        if node.is_frozen:
            node.world.at(node._frozen_until, self)
        else:
            self._happens()


Deliver = Callable[[], None]


@dataclass
class Channel:
    """One direction of messages between two nodes. Messages arrive in order, unless a fault
    reorders them. silent_until: messages wait until this time; it is common to all channels of a
    network."""

    world: World
    to: Node
    link: "Link"
    _last: float = field(default=0.0)

    def send(self, deliver: Deliver, fault: Fault | None = None) -> None:
        world = self.world
        if fault is Fault.LOSS:
            return
        latency = 0.0002 + 0.002 * world.random.random()
        if fault is Fault.DELAY:
            latency += world.between(0.1, 2.0)
        when = max(self._last, world.now + latency, self.link.silent_until)
        if fault is Fault.REORDER:
            # The next message overtakes it.
            self.to.take(when + world.between(0.01, 1.0), deliver)
            return
        self._last = when
        self.to.take(when, deliver)
        if fault is Fault.DUPLICATION:
            self.to.take(
                when
                + world.random.choice((0.0, world.between(0.0, 1.0), world.between(1.0, 20.0))),
                deliver,
            )


@dataclass
class Link:
    """The network between two nodes. silent_until: messages wait until this time of the world."""

    silent_until: float = 0.0

"""Chooses the prefill node of each prompt among those that are connected.

Owns what is known of each of them while its connection lives: its entries in the index, and what
follows its stream of them. Its load is the connection's. Thread rule: the hand-over's
event loop. Invariant: a node that is lost is forgotten at once, and its number given to none other
before.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random

import grpc

from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.decode_node.prefill_links import PrefillLink
from tasuki.engine import messages as m
from tasuki.engine.messages import Tokens
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.routing.node_choice import (
    HOLDERS,
    SAMPLED_ABOVE,
    Bid,
    Candidate,
    Choice,
    Reason,
    RouteName,
    by_hash,
    by_rooms,
    choose,
    copy_pays,
    looked_at,
    reason_of,
    should_move,
)
from tasuki.routing.node_load import PrefillSeconds
from tasuki.routing.prefix_hints import Beginning, SentPrefixes
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import prefixes_from_wire

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0
"""A node sends a batch a second."""
MOST_OF_A_NODE = 1 << 16
MOST_OF_ALL = 1 << 21
_MOST_NODES = 1 << 16


@dataclass
class _Followed:
    """entries: listed of it. sequence: of its stream's last batch. heard_at: monotonic seconds of
    that; -inf where it stands at no snapshot."""

    entries: int = 0
    sequence: int = 0
    heard_at: float = -math.inf


class UsableIndex:
    """Who of the connected prefill nodes holds which prefix, by the batches that they send.

    Owns the numbers by which the C++ index knows nodes. Thread rule: the event loop. Invariants:
    what is listed are hints, for the node itself looks again; a node that breaks a bound or an
    order loses all its entries and nobody else's; no node has more than MOST_OF_A_NODE entries,
    and all together no more than MOST_OF_ALL.
    """

    def __init__(self) -> None:
        self._index = FleetIndex()
        self._followed: dict[int, _Followed] = {}
        self._given = 0

    def __len__(self) -> int:
        """Entries of all nodes."""
        return len(self._index)

    def entries(self, number: int) -> int | None:
        """Of one node; None where it is not followed. From any thread."""
        node = self._followed.get(number)
        return None if node is None else node.entries

    def add(self) -> int:
        """A node more; its number, which none had for long. Raises PeerInvalid where there are too
        many."""
        if len(self._followed) == _MOST_NODES:
            raise PeerInvalid(f"usable: {_MOST_NODES} nodes are followed already")
        while (number := self._given % _MOST_NODES) in self._followed:
            self._given += 1
        self._given += 1
        self._followed[number] = _Followed()
        return number

    def discard(self, number: int) -> None:
        """The node is lost."""
        self.start_over(number)
        del self._followed[number]

    def start_over(self, number: int) -> None:
        """Forget what it holds: a stream begins anew, with a snapshot."""
        if self._followed[number].entries:
            self._index.forget(number)
        self._followed[number] = _Followed()

    def apply(self, number: int, batch: pb.UsableBatch, now: float) -> int:
        """The next one of its stream; how many prefixes were in it. Raises PeerInvalid where it is
        no such one; then call start_over()."""
        node = self._followed[number]
        if batch.sequence != node.sequence + 1:
            raise PeerInvalid(f"usable.sequence {batch.sequence} follows {node.sequence}")
        if node.sequence == 0 and not batch.snapshot:
            raise PeerInvalid("usable.snapshot is not set in the stream's first batch")
        removed, stored = prefixes_from_wire(batch)
        if batch.snapshot and node.entries:
            self._index.forget(number)
            node.entries = 0
        before = len(self._index)
        for prefix in removed:
            self._index.remove(number, *prefix)
        room = min(MOST_OF_A_NODE - node.entries, MOST_OF_ALL - before) + len(removed)
        for prefix in stored[: max(0, room)]:
            self._index.store(number, *prefix)
        node.entries += len(self._index) - before
        node.sequence = batch.sequence
        node.heard_at = now
        return len(removed) + len(stored)

    def fresh(self, number: int, now: float) -> bool:
        return now - self._followed[number].heard_at <= FRESH_SECONDS

    def look_up(
        self, prompt: Tokens, salt: bytes, enough: int, seed: int
    ) -> tuple[dict[int, int], list[Beginning]]:
        """Tokens of the prompt by node that holds some, those who hold most: `enough` of them, if
        there are as many. seed: which of those that hold equally much. And its beginnings."""
        holders, beginnings = self._index.look_up(prompt, salt, enough, seed)
        return dict(holders), beginnings


_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
_LEAST_BETWEEN = 0.01
_PREFIXES_A_SECOND = 100_000
"""A prefix costs this loop about 2 us."""


@contextmanager
def following(connection: PrefillConnection, index: UsableIndex, number: int) -> Iterator[None]:
    """Inside `with`, the index has what the node holds. number: the node's in the index.

    Invariants: whatever the node sends costs this loop a bounded share of its time and that node's
    entries at most. A stream that broke or made no sense is opened again, which begins with a
    snapshot, at growing intervals."""
    task = asyncio.create_task(_follow_always(connection, index, number), name="usable")
    try:
        yield
    finally:
        task.cancel()


async def _follow_always(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Until cancelled."""
    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            await _follow(connection, index, number)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            log.debug("prefill node %s: what is usable: %r", connection.node.name, error)
        except PeerInvalid as error:
            log.warning("prefill node %s: %s", connection.node.name, error)
        except Exception:
            log.exception("what prefill node %s holds could not be read", connection.node.name)
        index.start_over(number)
        if time.monotonic() - began > _LAST_PAUSE:
            pause = _FIRST_PAUSE
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


async def _follow(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Until the stream ends. Raises PeerInvalid, AioRpcError."""
    call = connection.stub.Usable(pb.UsableRequest(connection_id=connection.id))
    try:
        while isinstance(batch := await call.read(), pb.UsableBatch):
            prefixes = index.apply(number, batch, time.monotonic())
            await asyncio.sleep(max(_LEAST_BETWEEN, prefixes / _PREFIXES_A_SECOND))
    finally:
        call.cancel()


_SHOWN_BIDS = 8

Standing = tuple[PrefillLink, PrefillConnection]


@dataclass(frozen=True)
class Chosen:
    """The prefill node that was chosen for a prompt: whether the prompt should move on, and why it
    went there. Values alone.

    link, connection: where the prompt of so many tokens goes. choice: why; moved_from: where it
    was before. seconds: of a prefill. asked_at: monotonic seconds. beginnings: of the
    prompt. held: tokens of it by node, of those that are known to hold most."""

    link: PrefillLink
    connection: PrefillConnection
    choice: Choice
    standing: Mapping[int, Standing]
    tokens: int
    seconds: PrefillSeconds
    asked_at: float
    beginnings: Sequence[Beginning] = ()
    held: Mapping[int, int] = field(default_factory=dict)
    moved_from: str = ""

    @property
    def second(self) -> str | None:
        """The target of the second choice, which the prompt may go on to; None where it may go
        nowhere else, since no costs decided or it has moved already."""
        second = self.choice.second
        if self.choice.reason is not Reason.COST or second is None or self.moved_from:
            return None
        return self.standing[second.candidate.node][0].target

    def should_move(self, wait: float) -> bool:
        """Whether the second choice is cheaper, now that so many seconds of prefill are before the
        prompt. REQUIRES: there is a second choice."""
        second = self.choice.second
        assert second is not None
        return should_move(self.choice.chosen, second, wait)

    @property
    def listed(self) -> int:
        """Tokens that the node says it holds, believed or not."""
        return self.held.get(self.choice.chosen.candidate.node, 0)

    def report(self, wait: float | None, usable: int) -> m.PrefillChoice:
        """wait: of prefill that was before the prompt; None where that was little. usable: tokens
        of which the node had state."""
        choice, chosen = self.choice, self.choice.chosen
        shown = list(choice.bids[:_SHOWN_BIDS])
        if not any(bid is chosen for bid in shown):
            shown[-1] = chosen
        return m.PrefillChoice(
            choice.reason.value,
            tuple(self._shown(bid) for bid in shown),
            len(choice.bids),
            chosen.candidate.usable,
            self._regret(wait, usable),
            self.moved_from,
        )

    def _regret(self, wait: float | None, usable: int) -> float:
        second, chosen = self.choice.second, self.choice.chosen
        if second is None:
            return 0.0
        waited = 0.0 if wait is None else wait - chosen.candidate.wait
        computed = self.seconds.between(min(usable, self.tokens), self.tokens)
        return max(0.0, chosen.cost + waited + computed - chosen.prefill - second.cost)

    def _shown(self, bid: Bid) -> m.PrefillBid:
        link, connection = self.standing[bid.candidate.node]
        return m.PrefillBid(
            connection.node.name,
            link.target,
            bid.candidate.usable,
            bid.prefill,
            bid.candidate.wait,
            bid.candidate.exposed,
            bid.cost,
            bid is self.choice.chosen,
        )


_UNKNOWN = PrefillSeconds(0.01, 1e-4, 0.0)
"""Of a prefill on a node that has reported nothing yet."""
_KEYED_TOKENS = 512
"""Of a prompt's beginning, by which it is hashed where it continues no session."""
_FRESH_FOR = 0.25
"""Seconds for which it holds whether the index is fresh."""

Follow = Callable[[PrefillConnection, UsableIndex, int], AbstractContextManager[None]]


@dataclass(frozen=True)
class Holder:
    """A node that has the state behind the first `tokens` of a prompt, of which the chosen one
    would compute what it lacks in so many seconds."""

    link: PrefillLink
    connection: PrefillConnection
    tokens: int
    seconds: float


class PrefillRouter:
    def __init__(
        self,
        route: RouteName,
        node: str,
        seed: int | None = None,
        follow: Follow = following,
    ) -> None:
        """node: this decode node's name, under which its sessions are hashed. seed: of what is
        drawn; by default another one in each process. follow: keeps a connection's entries of the
        index up to date, inside `with`."""
        self._follow = follow
        self.index = UsableIndex()
        self._route = route
        self._node = node
        self._random = Random(seed)
        self._follows = route in ("auto", "cost")
        """Whether it matters what nodes hold."""
        self._sent = SentPrefixes()
        self._standing: dict[int, Standing] = {}
        self._numbers: list[int] = []
        """Its keys, in an order of this node's own."""
        self._first = self._random.getrandbits(32)
        self._fresh, self._fresh_as_of = False, -math.inf

    @contextmanager
    def standing(self, link: PrefillLink, connection: PrefillConnection) -> Iterator[None]:
        """Inside `with`, the connection is followed and may be chosen."""
        number = connection.number = self.index.add()
        self._standing[number] = link, connection
        self._numbers = self._turned()
        try:
            with self._follow(connection, self.index, number) if self._follows else nullcontext():
                yield
        finally:
            connection.number = None
            del self._standing[number]
            self._numbers = self._turned()
            self.index.discard(number)

    def _turned(self) -> list[int]:
        """While nobody knows of a difference, not all decode nodes begin with the same one."""
        numbers = [*self._standing]
        first = self._first % len(numbers) if numbers else 0
        return [*numbers[first:], *numbers[:first]]

    def listed(self, connection: PrefillConnection) -> int | None:
        """Prefixes that the index has of it; None where it is not followed. From any thread."""
        number = connection.number
        return None if number is None or not self._follows else self.index.entries(number)

    def most_held(self, prompt: m.Tokens, salt: bytes, excluded: Collection[PrefillLink]) -> int:
        """Tokens of the prompt that the one of all nodes is known to hold which holds most.
        excluded: nodes that do not count."""
        held, _ = self.index.look_up(prompt, salt, HOLDERS, 0)
        tokens = (
            self._standing[number][1].hints.believed(tokens)
            for number, tokens in held.items()
            if self._standing[number][1].alive and self._link(number) not in excluded
        )
        return max(tokens, default=0)

    def choose(
        self,
        wanted: m.HandoverWanted,
        excluded: Collection[PrefillLink],
        busy: Iterable[PrefillConnection],
        named: str | None = None,
        moved_from: str = "",
    ) -> Chosen | None:
        """Where the prompt is to go; sent() says that it did. excluded: where it may not go. busy:
        the connections of live rooms. named: the target that it goes to: its second choice where it
        has moved, else a gateway's. moved_from: where it was before, if it has moved. None where no
        node is left."""
        now = time.monotonic()
        numbers = self._numbers
        if excluded:
            numbers = [number for number in numbers if self._link(number) not in excluded]
        reason = reason_of(self._route, self._is_fresh(now))
        picked = None
        if named is not None:
            reason = Reason.MOVED if moved_from else Reason.GATEWAY
            picked = next((n for n in self._alive(numbers) if self._link(n).target == named), None)
            if picked is None:
                return None
        elif reason is not Reason.COST and (alive := self._alive(numbers)):
            picked = self._picked(reason, wanted, alive, busy)
        chosen = self._weighed(reason, wanted, numbers, picked, now)
        return None if chosen is None else replace(chosen, moved_from=moved_from)

    def sent(self, chosen: Chosen) -> None:
        """The prompt goes there: its seconds are that node's from now on."""
        bid = chosen.choice.chosen
        work = bid.prefill + bid.candidate.exposed
        chosen.connection.load.send(work, chosen.asked_at)
        self._sent.send(chosen.beginnings, bid.candidate.node, chosen.asked_at)

    def holder(self, wanted: m.HandoverWanted, chosen: Chosen, at_least: int) -> Holder | None:
        """The node of whose state a copy is cheaper than computing it where the prompt goes. It may
        be one that takes no prompts, as it drains. at_least: as of copy_pays."""
        if not wanted.may_fetch or chosen.choice.reason is Reason.GATEWAY:
            return None
        held = {node: n for node, n in chosen.held.items() if n < len(wanted.prompt)}
        giving = [n for n in self._alive(held) if self._gives(n, chosen.asked_at)]
        number = max(giving, key=lambda node: held[node], default=None)
        if number is None or self._standing[number][1] is chosen.connection:
            return None
        usable = max(chosen.choice.chosen.candidate.usable, wanted.ticket.offered)
        seconds, pull = chosen.seconds, chosen.connection.load.pull
        if not copy_pays(usable, held[number], seconds, pull, at_least):
            return None
        link, connection = self._standing[number]
        return Holder(link, connection, held[number], seconds.between(usable, held[number]))

    def _gives(self, number: int, now: float) -> bool:
        connection = self._standing[number][1]
        return connection.gives_from <= now and not connection.hints.doubted

    def _alive(self, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if self._standing[number][1].alive]

    def _link(self, number: int) -> PrefillLink:
        return self._standing[number][0]

    def _is_fresh(self, now: float) -> bool:
        """Whether it is known of half of the nodes what they hold."""
        if now - self._fresh_as_of > _FRESH_FOR:
            fresh = sum(self.index.fresh(number, now) for number in self._standing)
            self._fresh, self._fresh_as_of = 2 * fresh >= len(self._standing), now
        return self._fresh

    def _picked(
        self,
        reason: Reason,
        wanted: m.HandoverWanted,
        numbers: Sequence[int],
        busy: Iterable[PrefillConnection],
    ) -> int:
        standing = (connection.number for connection in busy)
        rooms = Counter(number for number in standing if number is not None)
        if reason is Reason.FEWEST_ROOMS:
            return by_rooms(numbers, rooms)
        names = {number: self._link(number).target for number in numbers}
        return by_hash(self._key(wanted), names, rooms)

    def _weighed(
        self,
        reason: Reason,
        wanted: m.HandoverWanted,
        numbers: Sequence[int],
        picked: int | None,
        now: float,
    ) -> Chosen | None:
        """None where nobody of those that are looked at lives. REQUIRES: what is picked is among
        the numbers, and lives."""
        held, beginnings = self.index.look_up(
            wanted.prompt,
            wanted.ticket.salt,
            len(numbers) if len(numbers) <= SAMPLED_ABOVE else HOLDERS,
            self._random.getrandbits(64),
        )
        sent = self._sent.known(beginnings, now)
        allowed = set(numbers)
        known = [number for number in (*held, *sent) if number in allowed]
        nodes = self._alive(looked_at(numbers, known, self._random))
        if not nodes:
            return None
        if picked is not None and picked not in nodes:
            nodes = [*nodes, picked]
        standing = {number: self._standing[number] for number in nodes}
        seconds = _mean(connection.load.seconds for _, connection in standing.values())
        candidates = [
            _candidate(
                number, connection, held.get(number, 0), sent.get(number, 0), wanted, seconds, now
            )
            for number, (_, connection) in standing.items()
        ]
        tokens = len(wanted.prompt)
        choice = choose(reason, candidates, tokens, seconds, picked)
        link, connection = standing[choice.chosen.candidate.node]
        return Chosen(link, connection, choice, standing, tokens, seconds, now, beginnings, held)

    def _key(self, wanted: m.HandoverWanted) -> bytes:
        """The session's, else that of the prompt's beginning."""
        if wanted.session is not None:
            return f"{self._node}/{wanted.session}".encode()
        whole = len(wanted.prompt) // PAGE_TOKENS * PAGE_TOKENS
        beginning = wanted.prompt[: min(_KEYED_TOKENS, whole or len(wanted.prompt))]
        salt = blake2b(wanted.ticket.salt).digest()
        return blake2b(beginning.tobytes(), key=salt, digest_size=16).digest()


def _candidate(
    number: int,
    connection: PrefillConnection,
    usable: int,
    sent: int,
    wanted: m.HandoverWanted,
    seconds: PrefillSeconds,
    now: float,
) -> Candidate:
    """usable: as the node says, of which as much counts as is believed. What this node offers is
    usable there too, where pulling it takes less than computing it."""
    load, offered, exposed = connection.load, wanted.ticket.offered, 0.0
    usable = connection.hints.believed(usable)
    if load.pull is not None and offered > usable:
        fixed, each = load.pull
        pulled = fixed + each * (offered - usable)
        if pulled < seconds.between(usable, offered):
            usable, exposed = offered, pulled
    return Candidate(number, usable, load.wait(now), exposed, load.stored(now), sent)


def _mean(reported: Iterable[PrefillSeconds | None]) -> PrefillSeconds:
    """One for all, so that nodes which measured themselves a little differently stay equal."""
    known = [seconds for seconds in reported if seconds is not None]
    if not known:
        return _UNKNOWN
    return PrefillSeconds(
        sum(each.fixed for each in known) / len(known),
        sum(each.token for each in known) / len(known),
        sum(each.context for each in known) / len(known),
    )

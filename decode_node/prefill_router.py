"""Choice of the prefill node of each prompt among the connected ones.

Owns each node's entries in the index while its connection lives, and the task reading its stream of
entries. The load belongs to the connection. Thread rule: the hand-over's event loop. Invariant: a
lost node is forgotten at once, and its number is not reused before.
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
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.pycache.keys import Keys
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
    by_transfers,
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
"""Seconds in which an entry list counts as fresh; a node sends a batch a second."""
MOST_OF_A_NODE = 1 << 16
MOST_OF_ALL = 1 << 21
_MOST_NODES = 1 << 16


@dataclass
class _Followed:
    """Stream of one node's entries.

    entries: number of its entries in the index. sequence: number of its latest batch. heard_at:
    time of the latest batch in monotonic seconds; -inf before any snapshot.
    """

    entries: int = 0
    sequence: int = 0
    heard_at: float = -math.inf


class UsableIndex:
    """Index of the prefixes held by each connected prefill node, from the nodes' batches.

    Owns the numbers of nodes in the C++ index. Thread rule: the event loop. Invariants: entries are
    hints, because the node itself looks again. A node loses all its entries if it breaks a bound or
    an order; no other node loses any. No node has more than MOST_OF_A_NODE entries, and all
    together no more than MOST_OF_ALL.
    """

    def __init__(self) -> None:
        self._index = FleetIndex()
        self._followed: dict[int, _Followed] = {}
        self._given = 0

    def __len__(self) -> int:
        """Return the number of entries of all nodes."""
        return len(self._index)

    def entries(self, number: int) -> int | None:
        """Return the entries of one node; None if it is not followed. From any thread."""
        node = self._followed.get(number)
        return None if node is None else node.entries

    def add(self) -> int:
        """Add a node and return its number, unused for long. Raises PeerInvalid if there are too
        many nodes."""
        if len(self._followed) == _MOST_NODES:
            raise PeerInvalid(f"usable: {_MOST_NODES} nodes are followed already")
        while (number := self._given % _MOST_NODES) in self._followed:
            self._given += 1
        self._given += 1
        self._followed[number] = _Followed()
        return number

    def discard(self, number: int) -> None:
        """Remove a lost node and its entries."""
        self.start_over(number)
        del self._followed[number]

    def start_over(self, number: int) -> None:
        """Forget the node's entries: its stream begins anew, with a snapshot."""
        if self._followed[number].entries:
            self._index.forget(number)
        self._followed[number] = _Followed()

    def apply(self, number: int, batch: pb.UsableBatch, now: float) -> int:
        """Apply the next batch of the node's stream; return its number of prefixes. Raises
        PeerInvalid if it is not the next batch; then call start_over()."""
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
        transfer_id = min(MOST_OF_A_NODE - node.entries, MOST_OF_ALL - before) + len(removed)
        for prefix in stored[: max(0, transfer_id)]:
            self._index.store(number, *prefix)
        node.entries += len(self._index) - before
        node.sequence = batch.sequence
        node.heard_at = now
        return len(removed) + len(stored)

    def fresh(self, number: int, now: float) -> bool:
        return now - self._followed[number].heard_at <= FRESH_SECONDS

    def look_up(
        self, prompt: Keys, salt: bytes, enough: int, seed: int
    ) -> tuple[dict[int, int], list[Beginning]]:
        """Return the prompt's held tokens by node, and the prompt's prefixes. Lists the nodes with
        the most tokens: `enough` of them, if there are as many. seed: chooses among nodes with
        equally many."""
        holders, beginnings = self._index.look_up(prompt, salt, enough, seed)
        return dict(holders), beginnings


_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
_LEAST_BETWEEN = 0.01
_PREFIXES_A_SECOND = 100_000
"""Limit of the prefixes read from a node in a second; one costs this loop about 2 us."""


@contextmanager
def following(connection: PrefillConnection, index: UsableIndex, number: int) -> Iterator[None]:
    """Keep the index up to date with the node's entries, inside `with`. number: the node's in the
    index.

    Invariants: a node's messages cost this loop a bounded share of its time, and at most the node's
    entries. A broken or invalid stream is opened again, at growing intervals. It begins with a
    snapshot.
    """
    task = asyncio.create_task(_follow_always(connection, index, number), name="usable")
    try:
        yield
    finally:
        task.cancel()


async def _follow_always(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Follow the node's entries until cancelled."""
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
    """Follow one stream of entries until it ends. Raises PeerInvalid, AioRpcError."""
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
    """Prefill node chosen for a prompt, with the reason, and the decision to move on. Values alone.

    link, connection: the chosen node's. choice: the reason. standing: link and connection of each
    node looked at. tokens: length of the prompt. seconds: cost of a prefill. asked_at: monotonic
    seconds. beginnings: prefixes of the prompt. held: the prompt's held tokens by node, for the
    nodes known to hold most. moved_from: previous target.
    """

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
        """Return the target of the second choice, for a move of the prompt. None if costs did not
        decide or the prompt has moved already."""
        second = self.choice.second
        if self.choice.reason is not Reason.COST or second is None or self.moved_from:
            return None
        return self.standing[second.candidate.node][0].target

    def should_move(self, wait: float) -> bool:
        """Return True if the second choice is cheaper, with `wait` seconds of prefill before the
        prompt. REQUIRES: there is a second choice."""
        second = self.choice.second
        assert second is not None
        return should_move(self.choice.chosen, second, wait)

    @property
    def listed(self) -> int:
        """Return the number of tokens in the node's list, believed or not."""
        return self.held.get(self.choice.chosen.candidate.node, 0)

    def report(self, wait: float | None, usable: int) -> m.PrefillChoice:
        """Return a report of the choice. wait: seconds of prefill before the prompt; None for a
        short wait. usable: tokens of the prompt with state on the node."""
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
"""Cost of a prefill on a node without a report."""
_KEYED_TOKENS = 512
"""Length of the prompt's prefix hashed as the key if the prompt continues no session."""
_FRESH_FOR = 0.25
"""Seconds in which the result of _is_fresh() is cached."""

Follow = Callable[[PrefillConnection, UsableIndex, int], AbstractContextManager[None]]


@dataclass(frozen=True)
class Holder:
    """Node with the state behind the first `tokens` of a prompt.

    seconds: time for the chosen node to compute its missing part.
    """

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
        """node: name of this decode node, hashed with its sessions. seed: seed of random numbers;
        by default another one in each process. follow: keeps a connection's entries of the index up
        to date, inside `with`."""
        self._follow = follow
        self.index = UsableIndex()
        self._route = route
        self._node = node
        self._random = Random(seed)
        self._follows = route in ("auto", "cost")
        """True if the route uses the prefixes held by nodes."""
        self._sent = SentPrefixes()
        self._standing: dict[int, Standing] = {}
        self._numbers: list[int] = []
        """The keys of _standing, in an order of this node's own."""
        self._first = self._random.getrandbits(32)
        self._fresh, self._fresh_as_of = False, -math.inf

    @contextmanager
    def standing(self, link: PrefillLink, connection: PrefillConnection) -> Iterator[None]:
        """Follow the connection and let it be chosen, inside `with`."""
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
        """Return the numbers, rotated by a random amount: without known differences, decode nodes
        then begin with different nodes."""
        numbers = [*self._standing]
        first = self._first % len(numbers) if numbers else 0
        return [*numbers[first:], *numbers[:first]]

    def listed(self, connection: PrefillConnection) -> int | None:
        """Return the number of the connection's prefixes in the index; None if it is not followed.
        From any thread."""
        number = connection.number
        return None if number is None or not self._follows else self.index.entries(number)

    def most_held(self, prompt: Keys, salt: bytes, excluded: Collection[PrefillLink]) -> int:
        """Return the most tokens of the prompt known to be held by one node. excluded: nodes not
        counted."""
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
        """Return the node for the prompt; None if no node is left. Call sent() when the prompt goes
        there.

        excluded: links not to be chosen. busy: connections of live rooms. named: fixed target: the
        second choice of a moved prompt, else a gateway's choice. moved_from: previous target of a
        moved prompt.
        """
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
        """Record the prompt as sent: its seconds count as load of the node from now on."""
        bid = chosen.choice.chosen
        work = bid.prefill + bid.candidate.exposed
        chosen.connection.load.send(work, chosen.asked_at)
        self._sent.send(chosen.beginnings, bid.candidate.node, chosen.asked_at)

    def holder(self, wanted: m.HandoverWanted, chosen: Chosen, at_least: int) -> Holder | None:
        """Return the node with state cheaper to copy than to compute at the chosen node; None if
        there is none. It may be a draining node, because a fetch is no prompt. at_least: see
        copy_pays."""
        if not wanted.may_fetch or chosen.choice.reason is Reason.GATEWAY:
            return None
        held = {node: n for node, n in chosen.held.items() if n < len(wanted.prompt)}
        giving = [n for n in self._alive(held) if self._gives(n, chosen.asked_at)]
        number = max(giving, key=lambda node: held[node], default=None)
        if number is None or self._standing[number][1] is chosen.connection:
            return None
        usable = max(chosen.choice.chosen.candidate.usable, wanted.transfer_request.offered)
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
        """Return True if the held prefixes of at least half of the nodes are known."""
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
        transfers = Counter(number for number in standing if number is not None)
        if reason is Reason.FEWEST_TRANSFERS:
            return by_transfers(numbers, transfers)
        names = {number: self._link(number).target for number in numbers}
        return by_hash(self._key(wanted), names, transfers)

    def _weighed(
        self,
        reason: Reason,
        wanted: m.HandoverWanted,
        numbers: Sequence[int],
        picked: int | None,
        now: float,
    ) -> Chosen | None:
        """Return the choice among the looked-at nodes; None if none of them lives. REQUIRES:
        `picked` is among the numbers, and lives."""
        held, beginnings = self.index.look_up(
            wanted.prompt,
            wanted.transfer_request.salt,
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
        """Return the key to hash: the session's, else the key of the prompt's prefix."""
        if wanted.session is not None:
            return f"{self._node}/{wanted.session}".encode()
        whole = len(wanted.prompt) // PAGE_TOKENS * PAGE_TOKENS
        beginning = wanted.prompt[: min(_KEYED_TOKENS, whole or len(wanted.prompt))]
        salt = blake2b(wanted.transfer_request.salt).digest()
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
    """Return the node as a candidate. usable: tokens reported by the node, reduced to the believed
    ones. Tokens offered by this node count too, if a pull takes less time than their
    computation."""
    load, offered, exposed = connection.load, wanted.transfer_request.offered, 0.0
    usable = connection.hints.believed(usable)
    if load.pull is not None and offered > usable:
        fixed, each = load.pull
        pulled = fixed + each * (offered - usable)
        if pulled < seconds.between(usable, offered):
            usable, exposed = offered, pulled
    return Candidate(number, usable, load.wait(now), exposed, load.stored(now), sent)


def _mean(reported: Iterable[PrefillSeconds | None]) -> PrefillSeconds:
    """Return the mean cost for all nodes, so small differences between measurements do not
    decide."""
    known = [seconds for seconds in reported if seconds is not None]
    if not known:
        return _UNKNOWN
    return PrefillSeconds(
        sum(each.fixed for each in known) / len(known),
        sum(each.token for each in known) / len(known),
        sum(each.context for each in known) / len(known),
    )

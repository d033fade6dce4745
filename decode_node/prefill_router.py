"""Choice of the prefill node for each prompt, among the connected ones.

Owns the index of the prefixes held by each node while its connection lives, and the task reading
them. The load belongs to the connection. Thread rule: the hand-over's event loop. Invariant: a lost
node is forgotten immediately, and its number is not reused before.
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
from tasuki.pycache.weights_namespace import START, WeightsNamespace
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
"""Seconds for which a node's list of held prefixes counts as fresh; a node sends a batch a
second."""
MOST_OF_A_NODE = 1 << 16
MOST_OF_ALL = 1 << 21
_MOST_NODES = 1 << 16


@dataclass
class _Followed:
    """Reading state of one node's stream of held prefixes.

    weights: namespace of the node's weights; it uses only prefixes named in it. entries: number of
    its prefixes in the index. sequence: number of its latest batch. heard_at: time of the latest
    batch in monotonic seconds; -inf before any snapshot.
    """

    weights: WeightsNamespace = START
    entries: int = 0
    sequence: int = 0
    heard_at: float = -math.inf


class UsableIndex:
    """Index of the prefixes held by each connected prefill node, from the nodes' batches.

    Owns the numbers of nodes in the C++ index. Thread rule: the event loop. Invariants: entries are
    hints, because the node itself looks again. A node loses all its entries if it breaks a bound or
    an order; other nodes lose none. No node has more than MOST_OF_A_NODE entries, and all together
    no more than MOST_OF_ALL.
    """

    def __init__(self) -> None:
        self._index = FleetIndex()
        self._followed: dict[int, _Followed] = {}
        self._given = 0

    def __len__(self) -> int:
        """Return the number of held prefixes in the index, of all prefill nodes together."""
        return len(self._index)

    def entries(self, number: int) -> int | None:
        """Return the number of one node's prefixes in the index; None if the node is not in it. It
        may be called from any thread."""
        node = self._followed.get(number)
        return None if node is None else node.entries

    def add(self, weights: WeightsNamespace = START) -> int:
        """Add a node to the index; return its number, not used for a long time. weights: namespace
        of its weights. Raises PeerInvalid if there are too many nodes."""
        if len(self._followed) == _MOST_NODES:
            raise PeerInvalid(f"usable: {_MOST_NODES} nodes are followed already")
        while (number := self._given % _MOST_NODES) in self._followed:
            self._given += 1
        self._given += 1
        self._followed[number] = _Followed(weights)
        return number

    def discard(self, number: int) -> None:
        """Remove a lost node and its prefixes from the index."""
        self.start_over(number)
        del self._followed[number]

    def start_over(self, number: int) -> None:
        """Remove the node's prefixes from the index, because its stream begins again, with a
        snapshot."""
        node = self._followed[number]
        if node.entries:
            self._index.forget(number)
        self._followed[number] = _Followed(node.weights)

    def apply(self, number: int, batch: pb.UsableBatch, now: float) -> int:
        """Apply the next batch of the node's stream; return the number of prefixes in it, removed
        and stored. Prefixes beyond the limits are not stored. now: monotonic seconds. Raises
        PeerInvalid if it is not the next batch; the caller then calls start_over()."""
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
        """Return the number of the prompt's tokens held by each node, by node number, and the
        prompt's prefixes. Only the nodes holding most are returned, at least `enough` of them if
        there are as many. seed: random number choosing among nodes with equally many."""
        holders, beginnings = self._index.look_up(prompt, salt, enough, seed)
        held = self._of(START, holders)
        for weights in {node.weights for node in self._followed.values()} - {START}:
            held |= self._of(
                weights, self._index.holders(prompt, weights.salted(salt), enough, seed)
            )
        return held, beginnings

    def _of(self, weights: WeightsNamespace, holders: list[tuple[int, int]]) -> dict[int, int]:
        """Return the held tokens by node, of nodes with these weights."""
        followed = self._followed
        return {node: tokens for node, tokens in holders if followed[node].weights == weights}


_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
_LEAST_BETWEEN = 0.01
_PREFIXES_A_SECOND = 100_000
"""Most prefixes read from one node in a second; one prefix costs the event loop about 2 us."""


@contextmanager
def following(connection: PrefillConnection, index: UsableIndex, number: int) -> Iterator[None]:
    """Keep the index up to date with the node's held prefixes, inside `with`. number: number of the
    node in the index.

    Invariants: a node's messages take a bounded share of the event loop's time, and can damage only
    the node's own entries. A broken or invalid stream is opened again, at growing intervals. It
    begins with a snapshot.
    """
    task = asyncio.create_task(_follow_always(connection, index, number), name="usable")
    try:
        yield
    finally:
        task.cancel()


async def _follow_always(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Read the node's held prefixes into the index until cancelled, over one stream after
    another."""
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
    """Read one stream of the node's held prefixes into the index until it ends. Raises PeerInvalid,
    AioRpcError."""
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
    """Prefill node chosen for a prompt, with the reason, and the rule for moving the prompt. Values
    only.

    link, connection: the chosen node's. choice: costs of all considered nodes, and the reason.
    standing: link and connection of each considered node, by number. tokens: length of the prompt.
    seconds: cost of a prefill by its tokens. asked_at: time of the choice in monotonic seconds.
    beginnings: prefixes of the prompt. held: number of the prompt's tokens held by a node, for the
    nodes known to hold most. moved_from: HOST:PORT the prompt was moved from; empty if it was not
    moved.
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
        """Return HOST:PORT of the second-best node, to move the prompt to. Return None if costs did
        not decide the choice or the prompt was moved already."""
        second = self.choice.second
        if self.choice.reason is not Reason.COST or second is None or self.moved_from:
            return None
        return self.standing[second.candidate.node][0].target

    def should_move(self, wait: float) -> bool:
        """Return True if the second-best node is cheaper after all. wait: seconds of prefill before
        the prompt on the chosen node, as it reports them. REQUIRES: there is a second node."""
        second = self.choice.second
        assert second is not None
        return should_move(self.choice.chosen, second, wait)

    @property
    def listed(self) -> int:
        """Return the number of the prompt's tokens in the chosen node's list of held prefixes,
        trusted or not."""
        return self.held.get(self.choice.chosen.candidate.node, 0)

    def report(self, wait: float | None, usable: int) -> m.PrefillChoice:
        """Return a report of the choice for the usage. wait: reported seconds of prefill before the
        prompt; None: a short wait, not reported. usable: tokens of the prompt found with a state on
        the node."""
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
"""Assumed seconds of a prefill while no node has reported its own."""
_KEYED_TOKENS = 512
"""Length in tokens of the prompt's prefix hashed to choose a node, if the prompt continues no
session."""
_FRESH_FOR = 0.25
"""Seconds for which the result of _is_fresh() is cached."""

Follow = Callable[[PrefillConnection, UsableIndex, int], AbstractContextManager[None]]


@dataclass(frozen=True)
class Holder:
    """Prefill node holding the state behind the first `tokens` tokens of a prompt.

    seconds: time for the chosen node to compute the missing ones of these tokens.
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
        """route: policy for the choice. node: name of this decode node, hashed with its sessions.
        seed: seed of random numbers; None: a different one in each process. follow: returns a
        context manager keeping a connection's prefixes in the index up to date."""
        self._follow = follow
        self.index = UsableIndex()
        self._route = route
        self._node = node
        self._random = Random(seed)
        self._follows = route in ("auto", "cost")
        """True if the route's policy needs the prefixes held by nodes."""
        self._sent = SentPrefixes()
        self._standing: dict[int, Standing] = {}
        self._numbers: list[int] = []
        """Numbers of the connected nodes, in an order different on each decode node."""
        self._first = self._random.getrandbits(32)
        self._fresh, self._fresh_as_of = False, -math.inf

    @contextmanager
    def standing(self, link: PrefillLink, connection: PrefillConnection) -> Iterator[None]:
        """Let the connection's node be chosen, inside `with`. Its held prefixes are read only if
        the route is `auto` or `cost`."""
        number = connection.number = self.index.add(connection.weights)
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
        """Return the numbers of the connected nodes, rotated by this node's random amount. So
        decode nodes begin with different prefill nodes if no difference is known."""
        numbers = [*self._standing]
        first = self._first % len(numbers) if numbers else 0
        return [*numbers[first:], *numbers[:first]]

    def listed(self, connection: PrefillConnection) -> int | None:
        """Return the number of the connection's prefixes in the index; None if they are not read.
        It may be called from any thread."""
        number = connection.number
        return None if number is None or not self._follows else self.index.entries(number)

    def most_held(self, prompt: Keys, salt: bytes, excluded: Collection[PrefillLink]) -> int:
        """Return the largest number of the prompt's tokens known to be held by one node. excluded:
        links of nodes not counted."""
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
        """Return the choice of a node for the prompt; None if no node is left. Call sent() when the
        prompt is sent to the node.

        excluded: links not to be chosen. busy: connections of the live transfers, one entry for
        each. named: HOST:PORT of the only node allowed: the second-best node for a moved prompt,
        else a gateway's choice. moved_from: HOST:PORT the prompt was moved from.
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
        """Record the prompt as sent to the chosen node: its prefill seconds count as the node's
        load from now on."""
        bid = chosen.choice.chosen
        work = bid.prefill + bid.candidate.exposed
        chosen.connection.load.send(work, chosen.asked_at)
        self._sent.send(chosen.beginnings, bid.candidate.node, chosen.asked_at)

    def holder(self, wanted: m.HandoverWanted, chosen: Chosen, at_least: int) -> Holder | None:
        """Return a node with a state of the prompt cheaper to copy than to compute on the chosen
        node. Return None if there is none, or a gateway chose the node. It may be a draining node,
        because a fetch is no prompt. at_least: while pull times are unknown, a copy needs twice as
        many missing tokens."""
        if not wanted.may_fetch or chosen.choice.reason is Reason.GATEWAY:
            return None
        held = {node: n for node, n in chosen.held.items() if n < len(wanted.prompt)}
        giving = [
            n
            for n in self._alive(held)
            if self._gives(n, chosen.asked_at) and self._standing[n][1].takes(wanted.prompt)
        ]
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
        """Return True if the lists of held prefixes are fresh for at least half of the nodes."""
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
        """Return the choice among the considered nodes, with their costs; None if none of them
        lives. picked: node chosen by another rule than cost; None: choose by cost. REQUIRES:
        `picked` is in `numbers`, and lives."""
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
        """Return the key to hash for choosing a node: of the prompt's session, else of the prompt's
        prefix."""
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
    """Return the node as a candidate with its load. usable: tokens of the prompt listed by the
    node; less are counted if its list is not trusted. Tokens offered by this decode node count too,
    if a pull takes less time than computing them."""
    load, offered, exposed = connection.load, wanted.transfer_request.offered, 0.0
    usable = connection.hints.believed(usable)
    if load.pull is not None and offered > usable:
        fixed, each = load.pull
        pulled = fixed + each * (offered - usable)
        if pulled < seconds.between(usable, offered):
            usable, exposed = offered, pulled
    exposed += seconds.token * sum(work for end, work in wanted.encodes if end > usable)
    return Candidate(number, usable, load.wait(now), exposed, load.stored(now), sent)


def _mean(reported: Iterable[PrefillSeconds | None]) -> PrefillSeconds:
    """Return the mean cost of a prefill over all nodes' reports, so small differences between
    measurements do not decide."""
    known = [seconds for seconds in reported if seconds is not None]
    if not known:
        return _UNKNOWN
    return PrefillSeconds(
        sum(each.fixed for each in known) / len(known),
        sum(each.token for each in known) / len(known),
        sum(each.context for each in known) / len(known),
    )

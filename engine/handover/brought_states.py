"""States that an engine has brought to it from another node: pulled by a prefill engine, fetched
by a decode engine. Thread rule: the engine loop's.
"""

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.request import Pulling, Request, Waiting
from tasuki.engine.runner.base import AtRestQueue
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, ImpossibleRequest


@dataclass(frozen=True)
class _Granted:
    """The allocation is the sender's to write: state and KV of `tokens` are to land in it. peer:
    whose room it is."""

    request: Request
    peer: str
    allocation: Allocation
    tokens: int


@dataclass(frozen=True)
class _Quarantined:
    """Lost: the sender may still write the ids."""

    quarantine: int
    peer: str


class PullReceiver:
    """The return path as a prefill engine sees it: what it pulls from the node that answered the
    last turn.

    Owns the allocations that are granted to pulls and the quarantines of those lost. A pull
    belongs to a room but outlives it: whoever asked may leave, what lands is cached all the same.
    Emits what the prefill node acts on; each method is one event, and messages of pulls that are
    over are dropped. Invariants: a request pulls at most once; what was granted becomes the
    tree's only after every window was verified, and is free again otherwise only after its
    writer's fence; of one room's number there is one pull at a time.
    """

    def __init__(self, context: HandoverContext, window: AcceptWindow) -> None:
        """window: of rooms that pull, a lost one until its fence."""
        self._window = window
        self._cache = context.cache
        self._costs = context.router.costs
        self._emit = context.emit
        self._generations = count(1)
        self._pulls: dict[m.RoomId, _Granted | _Quarantined] = {}
        self.grants = AtRestQueue(context.runner, self._emit_grant)

    @property
    def left(self) -> int:
        """Pulls that are over: grows when others may begin."""
        return self._window.left

    def has_room(self, peer: str, tokens: int) -> bool:
        """Whether one more of the decode node's rooms may pull so many."""
        return self._window.has_room(peer, tokens)

    def begin(self, request: Request, peer: str) -> bool:
        """Grant room for what the ticket offers and ask for it; False where there is no memory,
        which is no reason to wait. REQUIRES: the request waits and pulled nothing yet, and the
        decode node `peer`, whose room it is, has room for one more."""
        assert request.ticket is not None
        request.pull_tried = True
        room, tokens = request.ticket.room, request.ticket.offered
        # A pull outlives its room, whose number is the peer's to choose: until that pull is over
        # and fenced, what comes under the number is about it.
        if room in self._pulls:
            return False
        try:
            allocation = self._cache.allocate_to_receive(
                request.prompt[:tokens],
                salt=request.salt,
                capacity_tokens=tokens,
                working_slots=1,
                cursor=None,
            )
        except ImpossibleRequest:
            return False
        if allocation is None:
            return False
        self._pulls[room] = _Granted(request, peer, allocation, tokens)
        self._window.enter(peer, room, tokens)
        request.move(Pulling())
        first = allocation.shared_pages
        pages = tuple(allocation.pages[first:].tolist())
        generation = next(self._generations)
        grant = m.PullGrant(room, generation, tokens, first, pages, allocation.working_slots[0])
        self.grants.put(grant)
        return True

    def _emit_grant(self, grant: m.PullGrant) -> None:
        self._emit(m.PullWanted(grant))

    def over(self, message: m.PullCommitted | m.PullLost) -> Request | None:
        """The request that waits for the pull, if it still does."""
        pull = self._pulls.get(message.room)
        if not isinstance(pull, _Granted):
            return None
        match message:
            case m.PullCommitted(report=report):
                del self._pulls[message.room]
                self._window.leave(pull.peer, message.room)
                self._commit(pull)
                pull.request.pulled = report
                self._costs.pulled.add(report.bytes, report.seconds)
            case m.PullLost():
                quarantine = self._cache.quarantine(pull.allocation)
                self._pulls[message.room] = _Quarantined(quarantine, pull.peer)
        if not isinstance(pull.request.state, Pulling):
            return None
        pull.request.move(Waiting())
        return pull.request

    def _commit(self, pull: _Granted) -> None:
        """Pages and state enter the tree."""
        allocation = pull.allocation
        self._cache.accept_received(allocation)
        self._cache.insert(
            allocation, pull.tokens, allocation.working_slots[0], CheckpointKind.TURN_END
        )
        self._cache.release(allocation)

    def fenced(self, message: m.PullFenced) -> None:
        pull = self._pulls.get(message.room)
        if isinstance(pull, _Quarantined):
            del self._pulls[message.room]
            self._window.leave(pull.peer, message.room)
            self._cache.free_quarantined(pull.quarantine)


MOST = 8
"""At a time. Each of them has a slot and pages here."""
_ALL = "all"
"""Whoever holds it: they share the window."""


@dataclass(frozen=True)
class _GrantedFetch:
    """The allocation is the holder's to write."""

    allocation: Allocation


@dataclass(frozen=True)
class _QuarantinedFetch:
    """Lost: the holder may still write the ids."""

    quarantine: int


@dataclass
class _Fetch:
    """state: None before anything is granted. waiting: requests that go on when it is over."""

    ticket: m.FetchTicket
    prompt: m.Tokens
    holder: str
    state: _GrantedFetch | _QuarantinedFetch | None = None
    waiting: list[Request] = field(default_factory=list)

    @property
    def beginning(self) -> tuple[bytes, bytes]:
        return self.ticket.salt, self.prompt.tobytes()


class Fetches:
    """Fetches as a decode engine sees them: states that prefill nodes hold and this one is to have.

    Owns their rooms until their ids are the tree's again, and the requests that wait for them.
    Emits what the decode node's hand-over client acts on; messages of fetches that are over are
    dropped. Thread rule: the engine loop's. Invariants: of one beginning there is one fetch at a
    time; what was granted becomes the tree's only after every window was verified, and is free
    again otherwise only after its writer's fence; whoever waits goes on once, whatever became of
    the fetch; no memory is waited for; at most MOST fetches live, of no more tokens than a
    quarter of what fits, a lost one until its fence.
    """

    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._emit = context.emit
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._window = AcceptWindow(capacity, MOST)
        self._generations = count(1)
        self._rooms: dict[m.RoomId, _Fetch] = {}
        self._by_beginning: dict[tuple[bytes, bytes], _Fetch] = {}
        """Those that are not lost."""
        self._released: deque[Request] = deque()
        self.grants = AtRestQueue(context.runner, self._emit_grant)

    def __contains__(self, room: m.RoomId) -> bool:
        return room in self._rooms

    def begin(self, advised: m.FetchAdvised, request: Request) -> None:
        """Fetch the beginning of the request's prompt, which waits for that; where there is no room
        for a fetch more it goes on at once. REQUIRES: it is Waiting, and in no queue."""
        self.fetch(request, advised.holder, advised.tokens, advised.seconds)

    def fetch(self, request: Request, holder: str, tokens: int, seconds: float) -> None:
        """begin() of what nobody's room has advised."""
        request.fetch_tried = True
        if not 0 < tokens < len(request.prompt):
            self._released.append(request)
            return
        prompt = request.prompt[:tokens]
        known = self._by_beginning.get((request.salt, prompt.tobytes()))
        if known is not None:
            known.waiting.append(request)
        elif self._window.has_room(_ALL, tokens):
            self._open(holder, seconds, prompt, request)
        else:
            self._released.append(request)

    def _open(self, holder: str, seconds: float, prompt: m.Tokens, request: Request) -> None:
        room = m.RoomId(secrets.randbits(62) + 1)
        ticket = m.FetchTicket(room, next(self._generations), request.salt)
        fetch = _Fetch(ticket, prompt, holder, waiting=[request])
        self._rooms[room] = self._by_beginning[fetch.beginning] = fetch
        self._window.enter(_ALL, room, len(prompt))
        self._emit(m.FetchWanted(ticket, prompt, holder, seconds))

    def grant_wanted(self, room: m.RoomId) -> None:
        """Grant what is lacking here, or decline."""
        fetch = self._rooms[room]
        if fetch.state is not None:
            return
        allocation = self._allocated(fetch)
        if allocation is None:
            self._emit(m.HandoverDeclined(room))
            return
        fetch.state = _GrantedFetch(allocation)
        first = allocation.shared_pages
        pages = tuple(allocation.pages[first:].tolist())
        slot = allocation.working_slots[0]
        self.grants.put(m.Grant(room, fetch.ticket.generation, first, pages, slot))

    def _allocated(self, fetch: _Fetch) -> Allocation | None:
        try:
            return self._cache.allocate_to_receive(
                fetch.prompt,
                salt=fetch.ticket.salt,
                capacity_tokens=len(fetch.prompt),
                working_slots=1,
            )
        except ImpossibleRequest:
            return None

    def _emit_grant(self, grant: m.Grant) -> None:
        fetch = self._rooms[grant.room]
        if isinstance(fetch.state, _GrantedFetch):
            self._emit(m.HandoverGranted(grant))
        else:
            # Lost before anybody was given the ids.
            self.fenced(grant.room)

    def done(self, message: m.RemoteDone) -> None:
        """Every window landed and matched: pages and state enter the tree."""
        fetch = self._rooms[message.room]
        if not isinstance(fetch.state, _GrantedFetch):
            return
        allocation = fetch.state.allocation
        self._cache.accept_received(allocation)
        slot = allocation.working_slots[0]
        self._cache.insert(allocation, len(fetch.prompt), slot, CheckpointKind.TURN_END)
        self._cache.release(allocation)
        self._forget(fetch)
        self._over(fetch, m.FetchOutcome.FETCHED, message.transfer.bytes)

    def lost(self, message: m.FetchLost) -> None:
        fetch = self._rooms[message.room]
        match fetch.state:
            case None:
                self._forget(fetch)
            case _GrantedFetch(allocation):
                fetch.state = _QuarantinedFetch(self._cache.quarantine(allocation))
            case _QuarantinedFetch():
                return
        self._over(fetch, message.outcome)

    def fenced(self, room: m.RoomId) -> None:
        fetch = self._rooms[room]
        if isinstance(fetch.state, _QuarantinedFetch):
            self._cache.free_quarantined(fetch.state.quarantine)
            self._forget(fetch)

    def _forget(self, fetch: _Fetch) -> None:
        del self._rooms[fetch.ticket.room]
        self._window.leave(_ALL, fetch.ticket.room)

    def _over(self, fetch: _Fetch, outcome: m.FetchOutcome, size: int = 0) -> None:
        del self._by_beginning[fetch.beginning]
        self._released.extend(fetch.waiting)
        self._emit(m.StateFetched(outcome, len(fetch.prompt), size, fetch.holder))

    def release(self, go_on: Callable[[Request], None]) -> None:
        """Let those go on that wait no longer, but for who was aborted meanwhile."""
        while self._released:
            request = self._released.popleft()
            if isinstance(request.state, Waiting):
                go_on(request)

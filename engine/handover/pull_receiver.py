"""The return path as a prefill engine sees it: what it pulls from the node that answered the last
turn.

Owns the allocations that are granted to pulls and the quarantines of those lost. A pull belongs to
a room but outlives it: whoever asked may leave, what lands is cached all the same. Emits what the
prefill node acts on; each method is one event, and messages of pulls that are over are dropped.
Invariants: a request pulls at most once; what was granted becomes the tree's only after every
window was verified, and is free again otherwise only after its writer's fence; of one room's number
there is one pull at a time."""

from dataclasses import dataclass
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.request import Pulling, Request, Waiting
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, ImpossibleRequest

from .accept_window import AcceptWindow
from .at_rest import AtRestQueue
from .base import HandoverContext


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

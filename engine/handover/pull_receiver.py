"""The return path as a prefill engine sees it: what it pulls from the node that answered the last
turn.

Owns the leases that are granted to pulls and the quarantines of those lost. A pull belongs to a
room but outlives it: whoever asked may leave, what lands is cached all the same. Emits what the
prefill node acts on; each method is one event, and messages of pulls that are over are dropped.
Invariants: a request pulls at most once; what was granted becomes the tree's only after every
window was verified, and is free again otherwise only after its writer's fence; of one room's number
there is one pull at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.request import Pulling, Request, Waiting
from tasuki.engine.routing.cost_learner import RateMeter
from tasuki.engine.runner.base import Event, EventRecorder
from tasuki.pycache._cpp_cache import CheckpointKind, ImpossibleRequest, Lease
from tasuki.pycache.prefix_cache import HybridPrefixCache


@dataclass(frozen=True)
class _Pull:
    request: Request
    lease: Lease
    tokens: int


class Pulls:
    def __init__(
        self,
        cache: HybridPrefixCache,
        runner: EventRecorder,
        emit: Callable[[m.Outbox], None],
        generations: Iterator[int],
        meter: RateMeter,
    ) -> None:
        self._cache = cache
        self._runner = runner
        self._emit = emit
        self._generations = generations
        self._meter = meter
        self._live: dict[m.RoomId, _Pull] = {}
        self._quarantined: dict[m.RoomId, int] = {}
        self._grants: deque[tuple[Event, m.PullGrant]] = deque()

    def begin(self, request: Request) -> bool:
        """Grant room for what the ticket offers and ask for it; False where there is no room, which
        is no reason to wait. REQUIRES: the request waits and pulled nothing yet."""
        assert request.ticket is not None
        request.pull_tried = True
        room, tokens = request.ticket.room, request.ticket.offered
        # A pull outlives its room, whose number is the peer's to choose: until that pull is over
        # and fenced, what is told of the number is told of it.
        if room in self._live or room in self._quarantined:
            return False
        try:
            lease = self._cache.lease_receive(
                request.prompt[:tokens],
                salt=request.salt,
                capacity_tokens=tokens,
                working_slots=1,
                cursor=None,
            )
        except ImpossibleRequest:
            return False
        if lease is None:
            return False
        self._live[room] = _Pull(request, lease, tokens)
        request.move(Pulling())
        first = lease.shared_pages
        pages = tuple(lease.pages[first:].tolist())
        generation = next(self._generations)
        grant = m.PullGrant(room, generation, tokens, first, pages, lease.working_slots[0])
        self._grants.append((self._runner.record_event(), grant))
        self.tell_grants()
        return True

    @property
    def granting(self) -> bool:
        """Whether a grant waits for the device."""
        return bool(self._grants)

    def tell_grants(self) -> None:
        """A sender obeys no stream: it may write once nothing launched for the ids' last owners
        runs."""
        while self._grants and self._grants[0][0]():
            self._emit(m.PullWanted(self._grants.popleft()[1]))

    def over(self, message: m.PullCommitted | m.PullLost) -> Request | None:
        """The request that waits for the pull, if it still does."""
        pull = self._live.pop(message.room, None)
        if pull is None:
            return None
        match message:
            case m.PullCommitted(report=report):
                self._commit(pull)
                pull.request.pulled = report
                self._meter.pulled.add(report.bytes, report.seconds)
            case m.PullLost():
                self._quarantined[message.room] = self._cache.quarantine(pull.lease)
        if not isinstance(pull.request.state, Pulling):
            return None
        pull.request.move(Waiting())
        return pull.request

    def _commit(self, pull: _Pull) -> None:
        """Pages and state enter the tree."""
        lease = pull.lease
        self._cache.settle(lease)
        self._cache.publish(lease, pull.tokens, lease.working_slots[0], CheckpointKind.TURN_END)
        self._cache.release(lease)

    def fenced(self, message: m.PullFenced) -> None:
        quarantine = self._quarantined.pop(message.room, None)
        if quarantine is not None:
            self._cache.free_quarantined(quarantine)

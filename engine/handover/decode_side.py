"""The receiving half of a hand-over, as a decode engine sees it: rooms it asked for, leases it
granted.

Owns rooms and quarantined ids. Emits what the decode node's hand-over client acts on. Each method
is one event; what it returns the engine goes on with. Messages of rooms that are over are dropped.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.accounting.evictions import EvictionLedger, breakdown
from tasuki.engine.request import (
    Aborted,
    AwaitingPrefill,
    Decoding,
    Progress,
    Receiving,
    Request,
    Waiting,
)
from tasuki.engine.routing.cost_learner import RateMeter
from tasuki.engine.runner.base import Event, EventRecorder
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import CheckpointKind, ImpossibleRequest, Match
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

from .early_start import EarlyStart
from .room_names import RoomNames


class TakeOver:
    def __init__(
        self,
        cache: HybridPrefixCache,
        runner: EventRecorder,
        ledger: EvictionLedger,
        emit: Callable[[m.Outbox], None],
        generations: Iterator[int],
        meter: RateMeter,
        early: EarlyStart | None = None,
    ) -> None:
        """early: what may decode before a prompt has landed, if anything."""
        self._cache = cache
        self._runner = runner
        self._ledger = ledger
        self._emit = emit
        self._generations = generations
        self._early = early
        self._meter = meter
        self._rooms: dict[m.RoomId, Request] = {}
        self._names = RoomNames()
        self._wanting: dict[m.RoomId, Request] = {}
        self._quarantined: dict[m.RoomId, int] = {}
        self._done: dict[m.RoomId, m.RemoteDone] = {}
        self._fenced: set[m.RoomId] = set()
        self._grants: deque[tuple[Event, m.Grant]] = deque()
        self.prefill_available = False

    def reserve(self, request: Request, match: Match) -> None:
        """Ask a prefill node for the prompt; nothing is held here until it is about to start."""
        told, request.told = request.told, None
        ticket = m.Ticket(
            room=m.RoomId(secrets.randbits(63)) if told is None else told.room,
            generation=next(self._generations),
            kv_matched=match.kv_tokens // PAGE_TOKENS * PAGE_TOKENS,
            sampling=request.sampling,
            salt=request.salt,
            marks=request.marks,
            offered=match.usable_tokens,
        )
        request.ticket = ticket
        request.asked_at = time.monotonic()
        request.move(AwaitingPrefill(ticket.room))
        self._rooms[ticket.room] = request
        self._names.note(ticket.room, request.id)
        sender = None if told is None else told.sender
        self._emit(m.HandoverWanted(request.id, ticket, request.prompt, sender))

    def knows(self, room: m.RoomId) -> bool:
        """Whether the room has a request, or ids that its writer may still write."""
        return room in self._rooms or room in self._quarantined

    def awaiting(self, room: m.RoomId) -> Request | None:
        """The request that a prefill node has and that was granted nothing yet."""
        request = self._rooms.get(room)
        awaits = request is not None and isinstance(request.state, AwaitingPrefill)
        return request if awaits else None

    def grant_wanted(self, message: m.GrantWanted) -> None:
        request = self._rooms.get(message.room)
        if request is not None and isinstance(request.state, AwaitingPrefill):
            self._wanting[message.room] = request

    def grant_waiting(self) -> None:
        """Lease and grant for every room whose sender is about to start, as far as there is
        room; then tell of those leased whose ids are at rest."""
        self._tell_grants()
        for room, request in list(self._wanting.items()):
            try:
                granted = self._grant(room, request)
            except ImpossibleRequest:
                # No other sender would find more room here.
                request.handover_lost = True
                self._emit(m.HandoverDeclined(room))
                granted = True
            if not granted:
                return
            del self._wanting[room]

    def _grant(self, room: m.RoomId, request: Request) -> bool:
        lease = self._cache.lease_receive(
            request.prompt,
            salt=request.salt,
            capacity_tokens=request.next_capacity,
            working_slots=2,
            cursor=request.cursor,
        )
        if lease is None:
            return False
        first = lease.shared_pages
        pages = -(-len(request.prompt) // PAGE_TOKENS)
        request.move(Receiving(room, lease))
        assert request.ticket is not None
        grant = m.Grant(
            room=room,
            generation=request.ticket.generation,
            first_page=first,
            pages=tuple(lease.pages[first:pages].tolist()),
            slot=lease.working_slots[0],
        )
        self._grants.append((self._runner.record_event(), grant))
        self._tell_grants()
        return True

    @property
    def granting(self) -> bool:
        """Whether a grant waits for the device."""
        return bool(self._grants)

    def _tell_grants(self) -> None:
        """A sender obeys no stream: it may write once nothing launched for the ids' last owners
        runs."""
        while self._grants and self._grants[0][0]():
            _, grant = self._grants.popleft()
            if grant.room in self._rooms:
                self._emit(m.HandoverGranted(grant))

    def ready(self, message: m.RemoteReady) -> tuple[Request, Sampled] | None:
        """The first token exists: it may go to the client; nothing else may before done()."""
        request = self._rooms.get(message.room)
        if request is None or not isinstance(request.state, Receiving) or request.output:
            return None
        request.hit = self._names.told_here(message.hit)
        request.prefilled_on = message.prefilled_on
        request.pulled = message.pulled
        request.route = joined(request.route, message.route)
        computed = message.hit.prompt_tokens - message.hit.usable_tokens
        if request.asked_at is not None and computed > 0:
            self._meter.there.add(computed, time.monotonic() - request.asked_at)
        return request, Sampled(message.token, message.logprob, message.margin)

    def done(self, message: m.RemoteDone) -> tuple[Request, Sampled | None] | None:
        """Every window landed and matched: the prompt's pages enter the tree, the request
        decodes. Where a step of it runs, join() does this after it."""
        request = self._rooms.get(message.room)
        if request is None or not isinstance(request.state, Receiving) or not request.output:
            return None
        if self._early is not None and self._early.busy(message.room):
            self._done[message.room] = message
            return None
        return self._commit(request, message)

    def start_early(self, request: Request, message: m.RemoteReady) -> None:
        """The first token is out and not the last: decode the next one while windows land, where
        that is worth it."""
        if self._early is not None and isinstance(request.state, Receiving):
            lease = request.state.lease
            self._early.consider(message.room, request, lease, message.tail_seconds)

    def join(self) -> list[tuple[Request, Sampled | None]]:
        """Requests that are done and whose step has ended since; what was fenced meanwhile is
        freed."""
        if self._early is None:
            return []
        for room in [room for room in self._fenced if not self._early.busy(room)]:
            self._fenced.remove(room)
            self._free(room)
        ended = [room for room in self._done if not self._early.busy(room)]
        return [self._commit(self._rooms[room], self._done.pop(room)) for room in ended]

    def _commit(self, request: Request, message: m.RemoteDone) -> tuple[Request, Sampled | None]:
        """The request decodes; with the token that its early step drew, if there was one."""
        assert isinstance(request.state, Receiving)
        del self._rooms[message.room]
        lease = request.state.lease
        sampled = None if self._early is None else self._early.take(message.room)
        sent = request.transfer = message.transfer
        if request.pulled is not None:
            request.pulled = replace(request.pulled, timeline=message.pull)
        if sent.bytes:
            self._meter.sent.add(sent.bytes, sent.hidden_seconds + sent.exposed_seconds)
        self._cache.settle(lease)
        whole = len(request.prompt) // PAGE_TOKENS * PAGE_TOKENS
        if whole:
            self._cache.publish(lease, whole, None, CheckpointKind.PROMPT_END)
        length = len(request.prompt)
        # A step has forwarded the first token and left the state behind it in the other slot.
        progress = Progress(length) if sampled is None else Progress(length + 1, slot=1)
        request.move(Decoding(lease, progress))
        return request, sampled

    def lost(self, message: m.HandoverLost) -> Request | None:
        """Another prefill node is asked, or the prompt is prefilled here; what was granted waits
        for the writer's fence."""
        request = self._forget(message.room)
        if request is None:
            return None
        request.handover_lost |= not message.elsewhere or bool(request.output)
        request.prefilled_on = "local"
        request.hit = None
        if request.output:
            # The first token is out and will be part of the next lease; the client's prompt is not.
            match = self._cache.match(request.prompt, request.salt, request.cursor)
            request.hit = breakdown(match, self._ledger.lost(match))
        request.move(Waiting())
        return request

    def cancel(self, request: Request) -> None:
        """The client went away. REQUIRES: the request awaits or receives a hand-over."""
        assert request.ticket is not None
        self._forget(request.ticket.room)
        self._emit(m.HandoverCancelled(request.ticket.room))
        request.move(Aborted())

    def _forget(self, room: m.RoomId) -> Request | None:
        request = self._rooms.pop(room, None)
        self._wanting.pop(room, None)
        self._done.pop(room, None)
        if self._early is not None:
            self._early.withdraw(room)
        if request is not None and isinstance(request.state, Receiving):
            self._quarantined[room] = self._cache.quarantine(request.state.lease)
        return request

    def fenced(self, message: m.WriterFenced) -> None:
        if self._early is not None and self._early.busy(message.room):
            # The sender writes no more, the step does for a layer more.
            self._fenced.add(message.room)
        else:
            self._free(message.room)

    def _free(self, room: m.RoomId) -> None:
        if self._early is not None:
            self._early.forget(room)
        quarantine = self._quarantined.pop(room, None)
        if quarantine is not None:
            self._cache.free_quarantined(quarantine)


def joined(here: m.RouteReport | None, there: m.RouteReport | None) -> m.RouteReport | None:
    """What this node judged, and then the prefill node."""
    if here is None or there is None:
        return here
    return m.RouteReport(there.choice, {**here.estimates, **there.estimates})

"""Every state offered to prefill nodes by a decode engine, in one transfer each. These are its own
when it ends, and those of ending prefill nodes.

Owns no transfer: it asks for transfers and gives them up. Thread rule: the engine loop's.
Invariant: a drain target without a pull gets no destination, because it has the state or would
compute it.
"""

import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import count

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.handover.brought_states import Fetches
from tasuki.engine.handover.decode_transfers import DecodeTransfer, DecodeTransfers
from tasuki.engine.handover.leaving import (
    ALONE,
    BESIDE,
    Leaving,
    as_request,
    stands,
    state_tokens,
)
from tasuki.engine.request import Aborted, Finished, Request
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.pycache.layout import PAGE_TOKENS

_DRAIN_TARGET = "heir"
"""One key of the accept window for all drain targets: they share it."""


class OfferedStates(ABC):
    """A source of states to offer: their selection, their order, and the handling of outcomes.

    Invariant: the states offered at a time are limited in number, and in tokens by one drain
    target's limit of pulls from a node.
    """

    def __init__(self, context: HandoverContext, most: int) -> None:
        """most: transfers at a time."""
        self.offered = 0
        """Number of states in live transfers."""
        self._cache = context.cache
        self._line: deque[Request] = deque()
        """States without a transfer: to be offered, or to be offered again after a loss."""
        self._window = AcceptWindow(context.cache.capacity_tokens(context.working_slots), most)

    @abstractmethod
    def ended(
        self, request: Request, outcome: m.DrainTargetOutcome, size: int = 0, drain_target: str = ""
    ) -> None:
        """Record the outcome of the state. size, heir: bytes pulled and the pulling node, if it was
        taken."""

    def once_more(self, request: Request) -> None:
        """Queue the state, also after the loss of its transfer; another drain target may be
        asked."""
        self._line.append(request)

    def allows(self, size: int) -> bool:
        """Return True if a drain target may pull `size` bytes. They count against the bound from
        then on."""
        return True

    def has_room(self, request: Request) -> bool:
        return self._window.has_room(_DRAIN_TARGET, len(request.prompt))

    def opened(self, transfer_id: m.TransferId, request: Request) -> None:
        self.offered += 1
        self._window.enter(_DRAIN_TARGET, transfer_id, len(request.prompt))

    def closed(self, transfer_id: m.TransferId) -> None:
        self.offered -= 1
        self._window.leave(_DRAIN_TARGET, transfer_id)


class DrainTargets(OfferedStates):
    """The states left by an ending decode engine to prefill nodes, its drain targets.

    Owns the schedule of the offers and the budget of bytes to send. Knows neither the transfers'
    messages nor the drain target of each state. Thread rule: the engine loop's. Invariants: at most
    ALONE transfers live at a time, and BESIDE while any other request is in flight. The bytes
    allowed for pulls never exceed the bound. Nothing begins before begin() or after end(). States
    begun by end() are counted as cut.
    """

    def __init__(self, context: HandoverContext) -> None:
        super().__init__(context, ALONE)
        self.leaving = Leaving(context)
        self._struck = False
        """True once a drain target was refused more bytes than remained."""

    def next(self, beside: int) -> Request | None:
        """Return a state to be offered now, as a request of one token after it; None if there is
        none now. The caller opens its transfer and calls opened(). beside: requests in flight."""
        if not self.leaving.begun:
            return None
        self.leaving.look_again(beside)
        if self.offered >= (BESIDE if beside else ALONE):
            return None
        request = self._drawn()
        if request is not None and not self.has_room(request):
            self._line.appendleft(request)
            return None
        return request

    def _drawn(self) -> Request | None:
        while self._line:
            request = self._line.popleft()
            if not stands(self._cache, request):
                self.ended(request, m.DrainTargetOutcome.LOST)
            elif not self._is_too_much(request):
                return request
        while self.leaving.left_bytes > 0 and (drawn := self.leaving.draw()) is not None:
            if not self._is_too_much(drawn):
                return drawn
        return None

    def _is_too_much(self, request: Request) -> bool:
        """Return True if the state may exceed the bound after a drain target was refused for it.
        Such a state is counted and never offered. A drain target would first evict its own states
        for it, in vain."""
        if not self._struck or self.leaving.whole_bytes(request) <= self.leaving.left_bytes:
            return False
        self.ended(request, m.DrainTargetOutcome.TOO_MUCH)
        return True

    def allows(self, size: int) -> bool:
        if size > self.leaving.left_bytes:
            self._struck = True
            return False
        self.leaving.left_bytes -= size
        return True

    def ended(
        self, request: Request, outcome: m.DrainTargetOutcome, size: int = 0, drain_target: str = ""
    ) -> None:
        self.leaving.ended(outcome, state_tokens(request), size, drain_target)

    def end_if_over(self, beside: int) -> None:
        """Answer the queries if no request is in flight, no drain target holds an offer, and no
        state is left."""
        if self.leaving.begun and not (beside or self.offered or self._line):
            self.leaving.finish()

    def end(self) -> None:
        """Offer no more states, and answer the queries. REQUIRES: every offered state was counted
        as cut."""
        for request in self._line:
            self.ended(request, m.DrainTargetOutcome.CUT)
        self._line.clear()
        self.leaving.finish()


AT_A_TIME = 4
"""States offered at a time, beside answers and other pulls from here."""


class PassedOn(OfferedStates):
    """The states of ending prefill nodes passed on by this decode engine. It fetches each from its
    holder and offers it to a remaining prefill node, like a state of its own.

    Owns each state from PassOn to its answer, except the part owned by the fetch meanwhile. Thread
    rule: the engine loop's. Invariants: each is answered once. At most AT_A_TIME are offered at a
    time. No step waits for memory or for an answer's turn. A state already here is not fetched. A
    state whose continuation was handed over to this node is answered as held.
    """

    def __init__(self, context: HandoverContext, fetches: Fetches) -> None:
        super().__init__(context, AT_A_TIME)
        self._emit = context.emit
        self._intake = context.intake
        self._fetches = fetches
        self._name = f"passed-on-{secrets.token_hex(8)}"
        """Name prefix of these requests; no caller's request has it."""
        self._names = count(1)
        self._queries: dict[m.RequestId, int] = {}
        """The asker's query id, by request."""

    def take(self, message: m.PassOn) -> None:
        """Fetch the state if needed; then it is offered."""
        state = message.state
        prompt = np.append(state.prompt, state.prompt[-1:])
        name = m.RequestId(f"{self._name}-{next(self._names)}")
        request = as_request(name, prompt, state.salt)
        self._queries[name] = message.query_id
        if self._intake.misfit(prompt, len(prompt)) is not None:
            self.ended(request, m.DrainTargetOutcome.DECLINED)
            return
        match = self._cache.match(prompt, state.salt)
        tokens = len(state.prompt)
        if state.known and match.kv_tokens >= tokens:
            # The conversation continues here, so this node offers its later state.
            self.ended(request, m.DrainTargetOutcome.HELD)
        elif match.usable_tokens == tokens:
            self._line.append(request)
        else:
            self._fetches.fetch(request, message.holder, tokens, message.seconds)

    def next(self, available: bool) -> Request | None:
        """Return a state to be offered now, as Heirs.next(). available: a prefill node is
        connected."""
        while self._line:
            request = self._line[0]
            if not (available and stands(self._cache, request)):
                self._line.popleft()
                self.ended(request, m.DrainTargetOutcome.LOST)
            elif self.offered < AT_A_TIME and self.has_room(request):
                return self._line.popleft()
            else:
                return None
        return None

    def ended(
        self, request: Request, outcome: m.DrainTargetOutcome, size: int = 0, drain_target: str = ""
    ) -> None:
        self._emit(m.StatePassedOn(self._queries.pop(request.id), outcome, size, drain_target))


@dataclass
class _Offer:
    request: Request
    states: OfferedStates
    """The source of the offered state."""
    bytes: int = 0
    """Bytes allowed for its drain target's pull; 0 before."""
    refused: m.DrainTargetOutcome = m.DrainTargetOutcome.DECLINED
    """The outcome if nothing is pulled."""


class Offers:
    """Transfers of one token after a state, in which prefill nodes pull the state as its drain
    targets.

    Owns the number of bytes each drain target may pull. Invariant: each transfer ends with one
    outcome, or its state is tried once more.
    """

    def __init__(
        self, context: HandoverContext, transfers: DecodeTransfers, fetches: Fetches
    ) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._router = context.router
        self._transfers = transfers
        self._offers: dict[m.TransferId, _Offer] = {}
        self._drain_targets = DrainTargets(context)
        self._passed_on = PassedOn(context, fetches)

    def leave(self, query_id: int, beside: int) -> None:
        """Begin to leave this engine's states to drain targets. beside: requests in flight."""
        self._drain_targets.leaving.begin(query_id, beside)

    def pass_on(self, message: m.PassOn) -> None:
        self._passed_on.take(message)

    def fetched(self, request: Request) -> None:
        """Offer a passed-on state after its fetch, with any outcome of the fetch."""
        self._passed_on.once_more(request)

    def advance(self, available: bool, beside: int) -> None:
        """Offer as many states as the limits allow. available: a prefill node is connected. beside:
        requests in flight."""
        if not (available or beside) and self._drain_targets.leaving.begun:
            self.end_leaving()
        while available and (own := self._drain_targets.next(beside)) is not None:
            self._ask(self._drain_targets, own)
        self._drain_targets.end_if_over(beside)
        while (passed := self._passed_on.next(available)) is not None:
            self._ask(self._passed_on, passed)

    def _ask(self, states: OfferedStates, request: Request) -> None:
        match = self._cache.match(request.prompt, request.salt)
        transfer_id = self._transfers.ask(request, match)
        self._offers[transfer_id] = _Offer(request, states)
        states.opened(transfer_id, request)

    def _closed(self, transfer_id: m.TransferId) -> _Offer:
        offer = self._offers.pop(transfer_id)
        offer.states.closed(transfer_id)
        return offer

    def may_pull(self, message: m.PullAsked) -> bool:
        """Return True if the transfer's drain target may pull the part it lacks; else refuse the
        pull."""
        offer = self._offers[message.transfer_id]
        size = self._router.state_bytes(message.first_page * PAGE_TOKENS, message.tokens)
        if offer.states.allows(size):
            offer.bytes = size
            return True
        offer.refused = m.DrainTargetOutcome.TOO_MUCH
        self._emit(
            m.PullRefused(message.transfer_id, "as much was left to drain targets as may be")
        )
        return False

    def gone(self, transfer_id: m.TransferId) -> None:
        """Record the state asked for by the transfer's drain target as no longer here."""
        offer = self._offers[transfer_id]
        offer.bytes, offer.refused = 0, m.DrainTargetOutcome.LOST

    def is_pulled(self, transfer: DecodeTransfer) -> bool:
        """Return True if the drain target pulls the state. Otherwise end the transfer, because its
        drain target would compute."""
        if self._offers[transfer.id].bytes > 0:
            return True
        self._emit(m.HandoverCancelled(transfer.id))
        offer = self._closed(transfer.id)
        offer.states.ended(offer.request, offer.refused)
        self._end(transfer, Finished())
        return False

    def taken(self, transfer: DecodeTransfer, message: m.RemoteReady) -> None:
        """Record a state taken by its drain target, with the bytes pulled: a token after the state
        arrived."""
        offer, pulled = self._closed(transfer.id), message.pulled
        if pulled is None:
            offer.states.ended(offer.request, m.DrainTargetOutcome.LOST)
        else:
            taken = m.DrainTargetOutcome.TAKEN
            offer.states.ended(offer.request, taken, pulled.bytes, message.prefilled_on)
        self._end(transfer, Finished())

    def held(self, transfer_id: m.TransferId) -> None:
        """Record the state as already held by the drain target."""
        transfer = self._transfers.live(transfer_id)
        if transfer is not None:
            offer = self._closed(transfer_id)
            offer.states.ended(offer.request, m.DrainTargetOutcome.HELD)
            self._end(transfer, Finished())

    def lost(self, transfer_id: m.TransferId, elsewhere: bool) -> None:
        """Handle a lost transfer. elsewhere: another drain target may be asked."""
        offer = self._closed(transfer_id)
        if elsewhere:
            offer.states.once_more(offer.request)
        else:
            offer.states.ended(offer.request, m.DrainTargetOutcome.LOST)

    def end_leaving(self) -> None:
        """Leave no more states and give up live transfers; idempotent."""
        if self._drain_targets.leaving.over:
            return
        living = [
            number for number, offer in self._offers.items() if offer.states is self._drain_targets
        ]
        for transfer_id in living:
            self._drain_targets.ended(self._closed(transfer_id).request, m.DrainTargetOutcome.CUT)
        self._drain_targets.end()
        for transfer_id in living:
            self._emit(m.HandoverCancelled(transfer_id))
            transfer = self._transfers.live(transfer_id)
            assert transfer is not None
            self._end(transfer, Aborted())

    def _end(self, transfer: DecodeTransfer, end: Aborted | Finished) -> None:
        self._transfers.give_up(transfer)
        transfer.request.move(end)

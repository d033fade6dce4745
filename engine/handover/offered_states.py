"""The states offered to prefill nodes (drain targets) by a decode engine, each in one transfer.
They are the engine's own states when it ends, and states of ending prefill nodes.

Owns no transfer: it asks for transfers and gives them up. Thread rule: the engine loop's.
Invariant: a drain target without a pull gets no destination, because it has the state already or
would recompute it.
"""

import secrets
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.handover.brought_states import Fetches
from tasuki.engine.handover.decode_transfers import DecodeTransfer, DecodeTransfers
from tasuki.engine.handover.leaving import ALONE, BESIDE, Leaving, as_request, stands, state_tokens
from tasuki.engine.request import Aborted, Finished, Request
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.pycache.keys import repeat_last
from tasuki.pycache.layout import PAGE_TOKENS

_DRAIN_TARGET = "heir"
"""The accept window's single key: all drain targets share one limit."""


class OfferedStates(ABC):
    """A source of states to offer to drain targets: their selection, their order, and the handling
    of outcomes.

    Invariant: the states offered at a time are limited in number, and in tokens by a drain target's
    limit of pulls from one node.
    """

    def __init__(self, context: HandoverContext, most: int) -> None:
        """most: largest number of transfers at a time."""
        self.offered = 0
        """Number of offered states with a live transfer."""
        self._cache = context.cache
        self._line: deque[Request] = deque()
        """Queue of states without a transfer: not offered yet, or again after a loss."""
        self._window = AcceptWindow(context.cache.capacity_tokens(context.working_slots), most)

    @abstractmethod
    def ended(
        self, request: Request, outcome: m.DrainTargetOutcome, size: int = 0, drain_target: str = ""
    ) -> None:
        """Record the outcome of an offered state. size: bytes pulled, if the state was taken.
        drain_target: name of the node with the pull."""

    def once_more(self, request: Request) -> None:
        """Queue the state to be offered, or offered again after the loss of its transfer. Another
        drain target may be asked."""
        self._line.append(request)

    def allows(self, size: int) -> bool:
        """Return True if a drain target may pull `size` bytes. If so, they count against the byte
        budget from then on."""
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
    """The states handed on by an ending decode engine to prefill nodes, its drain targets.

    Owns the schedule of the offers and the budget of bytes to send. Knows neither the transfers'
    messages nor the drain target of each state. Thread rule: the engine loop's. Invariants: at most
    ALONE transfers live at a time, and BESIDE while any other request is in flight. The bytes
    allowed for pulls never exceed the budget. No offer begins before begin() or after end(). States
    without an outcome at end() are counted as cut.
    """

    def __init__(self, context: HandoverContext) -> None:
        super().__init__(context, ALONE)
        self.leaving = Leaving(context)
        self._struck = False
        """True once a drain target's pull was refused for having more bytes than remained."""

    def next(self, beside: int) -> Request | None:
        """Return a request for a state to be offered now; None if there is none now. Its prompt has
        the state's tokens and one more. The caller opens its transfer and calls opened(). beside:
        number of requests in flight."""
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
        """Return True if the state may exceed the remaining byte budget after another state's pull
        was refused for its size. Such a state is counted as TOO_MUCH and never offered: a drain
        target would evict its own states for it in vain."""
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
        state remains. beside: number of requests in flight."""
        if self.leaving.begun and not (beside or self.offered or self._line):
            self.leaving.finish()

    def end(self) -> None:
        """Offer no more states, count queued states as cut, and answer the queries. REQUIRES: every
        state with a live transfer was already counted as cut."""
        for request in self._line:
            self.ended(request, m.DrainTargetOutcome.CUT)
        self._line.clear()
        self.leaving.finish()


AT_A_TIME = 4
"""States of other nodes offered at a time, next to answers and other pulls from this node."""


class PassedOn(OfferedStates):
    """The states of ending prefill nodes passed on by this decode engine. It fetches each state
    from its holder and offers it to a remaining prefill node, like a state of its own.

    Owns each state from PassOn to its answer, except during its fetch. Thread rule: the engine
    loop's. Invariants: each PassOn is answered once. At most AT_A_TIME states are offered at a
    time. Nothing here waits for memory or for a place in the batch. A state already on this node is
    not fetched. A state is answered as HELD if its conversation continues on this node.
    """

    def __init__(self, context: HandoverContext, fetches: Fetches) -> None:
        super().__init__(context, AT_A_TIME)
        self._emit = context.emit
        self._intake = context.intake
        self._fetches = fetches
        self._name = f"passed-on-{secrets.token_hex(8)}"
        """Prefix of the request ids for passed-on states; no caller's request has it."""
        self._names = count(1)
        self._queries: dict[m.RequestId, int] = {}
        """Query id of each state's PassOn, by request id."""

    def take(self, message: m.PassOn) -> None:
        """Fetch the ending node's state if this node lacks it, and offer it afterwards. Decline a
        state too long for this node. Report one as held if its conversation continues here."""
        state = message.state
        prompt = repeat_last(state.prompt)
        name = m.RequestId(f"{self._name}-{next(self._names)}")
        request = as_request(name, prompt, state.salt)
        self._queries[name] = message.query_id
        if self._intake.state_misfit(prompt) is not None:
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
        """Return a state to be offered now, as a one-token request behind it; None if there is none
        now. Report states gone meanwhile as lost; without a prefill node, all of them. available:
        True if a prefill node is connected."""
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
    """The source of the offered state, notified of its outcome."""
    bytes: int = 0
    """Bytes allowed for the drain target's pull; 0 before the pull."""
    refused: m.DrainTargetOutcome = m.DrainTargetOutcome.DECLINED
    """The outcome if the drain target pulls nothing."""


class Offers:
    """Offers of stored states to prefill nodes (drain targets). Each offer is a transfer of one
    token after the state, and the prefill node pulls the state for it.

    Owns the number of bytes each drain target may pull. Invariant: each transfer ends with one
    outcome, or its state is offered again.
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
        """Begin to hand this engine's states on. beside: number of requests in flight."""
        self._drain_targets.leaving.begin(query_id, beside)

    def pass_on(self, message: m.PassOn) -> None:
        self._passed_on.take(message)

    def fetched(self, request: Request) -> None:
        """Offer another node's state after its fetch, with any outcome of the fetch."""
        self._passed_on.once_more(request)

    def advance(self, available: bool, beside: int) -> None:
        """Offer as many states as the limits allow. End leaving without a prefill node and any
        request in flight. available: True if a prefill node is connected. beside: number of
        requests in flight."""
        if not (available or beside) and self._drain_targets.leaving.begun:
            self.end_leaving()
        while available and (own := self._drain_targets.next(beside)) is not None:
            self._ask(self._drain_targets, own)
        self._drain_targets.end_if_over(beside)
        while (passed := self._passed_on.next(available)) is not None:
            self._ask(self._passed_on, passed)

    def _ask(self, states: OfferedStates, request: Request) -> None:
        match = self._cache.match(request.keys, request.salt)
        transfer_id = self._transfers.ask(request, match)
        self._offers[transfer_id] = _Offer(request, states)
        states.opened(transfer_id, request)

    def _closed(self, transfer_id: m.TransferId) -> _Offer:
        offer = self._offers.pop(transfer_id)
        offer.states.closed(transfer_id)
        return offer

    def may_pull(self, message: m.PullAsked) -> bool:
        """Return True if the transfer's drain target may pull the part of the state it lacks.
        Otherwise return False and refuse the pull."""
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
        """Record the offered state as gone from this node, after a request to pull it."""
        offer = self._offers[transfer_id]
        offer.bytes, offer.refused = 0, m.DrainTargetOutcome.LOST

    def is_pulled(self, transfer: DecodeTransfer) -> bool:
        """Return True if the drain target pulls the offered state. Otherwise return False and end
        the transfer, because the drain target would recompute the prompt."""
        if self._offers[transfer.id].bytes > 0:
            return True
        self._emit(m.HandoverCancelled(transfer.id))
        offer = self._closed(transfer.id)
        offer.states.ended(offer.request, offer.refused)
        self._end(transfer, Finished())
        return False

    def taken(self, transfer: DecodeTransfer, message: m.RemoteReady) -> None:
        """Record an offered state as taken by its drain target, with the bytes pulled, or as lost
        without a pull. The message with a token sampled behind the state shows this."""
        offer, pulled = self._closed(transfer.id), message.pulled
        if pulled is None:
            offer.states.ended(offer.request, m.DrainTargetOutcome.LOST)
        else:
            taken = m.DrainTargetOutcome.TAKEN
            offer.states.ended(offer.request, taken, pulled.bytes, message.prefilled_on)
        self._end(transfer, Finished())

    def held(self, transfer_id: m.TransferId) -> None:
        """Record the offered state as already held by the drain target, and end the transfer. Do
        nothing if it is no longer live."""
        transfer = self._transfers.live(transfer_id)
        if transfer is not None:
            offer = self._closed(transfer_id)
            offer.states.ended(offer.request, m.DrainTargetOutcome.HELD)
            self._end(transfer, Finished())

    def lost(self, transfer_id: m.TransferId, elsewhere: bool) -> None:
        """Handle the loss of an offer's transfer: offer the state again, or record it as lost.
        elsewhere: True if another drain target may be asked."""
        offer = self._closed(transfer_id)
        if elsewhere:
            offer.states.once_more(offer.request)
        else:
            offer.states.ended(offer.request, m.DrainTargetOutcome.LOST)

    def end_leaving(self) -> None:
        """Hand on no more states of this engine, and give up its offers' transfers. Idempotent."""
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

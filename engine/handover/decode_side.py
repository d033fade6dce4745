"""The receiving half of hand-overs: a decode engine's requests, and the choice of the node to
compute each prompt.

Transfers are in decode_transfers.py, fetched states in brought_states.py, offered states in
offered_states.py. Messages about ended transfers are dropped. Thread rule: the engine loop's.
Invariants: a prompt is asked for only while its answer has a place in the running batch. A transfer
with a destination is therefore decoded. Transfers and locally computed prompts wait for cache
memory in order of arrival. Preempted requests go first.
"""

import math
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.accounting import breakdown, pair_hit
from tasuki.engine.handover.brought_states import Fetches
from tasuki.engine.handover.decode_transfers import (
    DecodeTransfer,
    DecodeTransfers,
    DecodeTransferState,
    goes_on_here,
)
from tasuki.engine.handover.early_start import EarlyStart
from tasuki.engine.handover.held_states import PullSender
from tasuki.engine.handover.offered_states import Offers
from tasuki.engine.request import Aborted, AwaitingPrefill, Decoding, Receiving, Request, Waiting
from tasuki.engine.roles.answers import Answers, AnswerTerms
from tasuki.engine.roles.base import HandoverContext, RequestInbox
from tasuki.engine.routing import joined, report, usable_here
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import CheckpointKind, Match
from tasuki.pycache.layout import PAGE_TOKENS

AT_A_TIME = 16
"""Most hand-backs (states sent back to a prefill node) at a time. Each is read from the arena and
sent while answers continue."""
MOST_WAITING = 1024
"""Most waiting hand-backs (states sent back to a prefill node). All sessions of a draining node are
handed back together."""


class HandBacks:
    """Hand-backs: states of a decode engine sent back to a prefill node, because the conversation's
    next turn goes to another decode node.

    A prefill node is asked for one token after the state, and pulls the state for it. Owns the
    requests waiting to be sent. A hand-back takes no place and no memory on this node, and waits
    for no answer. Thread rule: the engine loop's. Invariant: at most AT_A_TIME transfers are
    hand-backs, quarantined transfers included.
    """

    def __init__(
        self, context: HandoverContext, answers: Answers, transfers: DecodeTransfers
    ) -> None:
        self._cache = context.cache
        self._intake = context.intake
        self._answers = answers
        self._transfers = transfers
        self._waiting: deque[Request] = deque()
        """Requests waiting to be handed back; some may have been aborted."""

    def submit(self, message: m.Submit, available: bool) -> None:
        """Accept a request to hand a state back to a prefill node. Finish it without a transfer if
        less than a page is cached. Reject it if too many wait. available: True if a prefill node is
        connected."""
        match = self._cache.match(message.keys, message.salt, message.cursor)
        held = message.prompt[: match.usable_tokens + 1]
        pictures, refusal = self._intake.placed(message), self._refusal(available)
        if isinstance(pictures, m.RequestError):
            pictures, refusal = None, pictures
        aside = replace(message, prompt=held, pictures=())
        request = self._answers.take_aside(aside, refusal, pictures)
        if request is None:
            return
        if match.usable_tokens < PAGE_TOKENS:
            # A transfer does not pay. An error would reveal to a stranger if some tokens of a page
            # are cached.
            self._answers.finish_elsewhere(request, m.FinishReason.LENGTH)
            return
        self._waiting.append(request)
        self.advance()

    def _refusal(self, available: bool) -> m.RequestError | None:
        if not available:
            return _not_handed_back("no prefill node is connected")
        if len(self._waiting) >= MOST_WAITING:
            return _not_handed_back(f"{MOST_WAITING} wait to be handed back, as many as may")
        return None

    def advance(self) -> None:
        """Begin waiting hand-backs, at most AT_A_TIME. Skip requests no longer Waiting."""
        while self._waiting and self._transfers.count(m.Purpose.HAND_BACK) < AT_A_TIME:
            request = self._waiting.popleft()
            if isinstance(request.state, Waiting):
                match = self._cache.match(request.keys, request.salt, request.cursor)
                self._transfers.ask(request, match)

    def lost(self, request: Request, message: m.HandoverFailed) -> None:
        """Handle the loss of a request's transfer. Retry it first in line if another prefill node
        may be asked; else reject it. REQUIRES: the request is Waiting."""
        if message.elsewhere:
            self._waiting.appendleft(request)
        else:
            self._answers.reject(request, _not_handed_back(message.reason))


def _not_handed_back(reason: str) -> m.RequestError:
    return m.RequestError(
        m.ErrorKind.NOT_HANDED_BACK,
        f"{reason}: ask the next turn elsewhere all the same, it is computed there",
    )


_NOTHING_SENT = m.TransferReport(bytes=0, windows=0, pages=0, hidden_seconds=0, exposed_seconds=0)


class DecodeHandover(Answers):
    """The requests of a decode engine; prefill nodes may compute their prompts."""

    def __init__(self, context: HandoverContext, terms: AnswerTerms, early: EarlyStart) -> None:
        """early: begins a decode step before the prompt has arrived."""
        super().__init__(context, terms)
        self._early = early
        self._transfers = DecodeTransfers(context, early)
        self._pulls = PullSender(context)
        self._fetches = Fetches(context)
        self._hand_backs = HandBacks(context, self, self._transfers)
        self._offers = Offers(context, self._transfers, self._fetches)
        self._prefill_available = False
        self._others_wait = 0.0
        """Seconds of prefill queued for other decode nodes, at the prefill node with the least."""
        self._blocked: Request | None = None
        """The first waiting request to be computed on this node, but without memory."""

    @property
    def admission_terms(self) -> Hashable:
        wanted = self._transfers.first_wanted
        return self._prefill_available, self._has_place, None if wanted is None else wanted.id

    @property
    def waits(self) -> bool:
        at_rest = (self._pulls.sources, self._fetches.grants)
        return self._transfers.waits or any(queue.waiting for queue in at_rest)

    @property
    def early_counters(self) -> dict[str, int]:
        return self._early.counters

    def handle(self, message: RequestInbox) -> None:
        match message:
            case m.GrantWanted(transfer_id) if transfer_id in self._fetches.transfers:
                self._fetches.grant_wanted(transfer_id)
            case m.RemoteDone(transfer_id) if transfer_id in self._fetches.transfers:
                self._fetches.done(message)
            case m.WriterFenced(transfer_id) if transfer_id in self._fetches.transfers:
                self._fetches.fenced(transfer_id)
            case m.FetchLost(transfer_id):
                if transfer_id in self._fetches.transfers:
                    self._fetches.lost(message)
            case m.FetchAdvised():
                self._fetch_first(message)
            case m.Submit(purpose=m.Purpose.HAND_BACK):
                self._hand_backs.submit(message, self._prefill_available)
            case m.Submit():
                self._submit(message)
            case m.PeersChanged(prefill_available):
                self._prefill_available = prefill_available
            case m.PrefillBusy(others_wait_seconds):
                self._others_wait = others_wait_seconds
            case m.GrantWanted():
                self._grant_wanted(message)
            case m.RemoteReady():
                self._ready(message)
            case m.RemoteDone():
                self._done(message)
            case m.EarlyStepEnded():
                for transfer, done in self._transfers.step_ended():
                    self._commit(transfer, done)
            case m.HandoverFailed():
                self._lost(message)
            case m.WriterFenced(transfer_id):
                self._transfers.fenced(transfer_id)
            case m.PullAsked():
                self._pull_asked(message)
            case m.PullEnd():
                self._pulls.end(message)
            case m.PassOn():
                self._offers.pass_on(message)
            case m.LeaveToDrainTargets(query_id):
                self._offers.leave(query_id, len(self.requests))
            case m.EndLeaving():
                self._offers.end_leaving()
            case m.AlreadyHeld(transfer_id):
                self._offers.held(transfer_id)
            case _:
                super().handle(message)

    def _submit(self, message: m.Submit) -> None:
        refusal = None
        if (
            message.gateway_transfer is not None
            and message.gateway_transfer.transfer_id in self._transfers
        ):
            refusal = m.RequestError(
                m.ErrorKind.INVALID,
                f"transfer {message.gateway_transfer.transfer_id} is in use: make another",
            )
        if message.gateway_transfer is not None and message.pictures:
            reason = "a gateway's transfer has no pictures: send the prompt without one"
            refusal = m.RequestError(m.ErrorKind.INVALID, reason)
        self.submit(message, refusal)

    def _elsewhere(self, request: Request) -> float:
        """Return the seconds a new request waits at the prefill nodes for other decode nodes' work;
        0 if it would be computed here."""
        if not (self._prefill_available and self._others_wait):
            return 0.0
        match = self._cache.match(request.keys, request.salt, request.cursor)
        new = match.prompt_tokens - usable_here(match)
        return self._others_wait if new > self._router.local_tokens else 0.0

    def _fetch_first(self, message: m.FetchAdvised) -> None:
        """Fetch a state for the transfer's prompt before asking a prefill node for the prompt. The
        request is in no queue meanwhile. It is considered again when the fetch is over, with or
        without the state."""
        transfer = self._transfers.at(message.transfer_id, DecodeTransferState.ASKED)
        if transfer is not None:
            self._transfers.give_up(transfer)
            transfer.request.move(Waiting())
            self._fetches.fetch(transfer.request, message.holder, message.tokens, message.seconds)

    def abort_request(self, request: Request) -> None:
        match request.state:
            case AwaitingPrefill(transfer_id) | Receiving(transfer_id):
                transfer = self._transfers.live(transfer_id)
                assert transfer is not None
                self._transfers.give_up(transfer)
                self._emit(m.HandoverCancelled(transfer_id))
                request.move(Aborted())
                self.end(request, m.FinishReason.ABORT)
            case _:
                super().abort_request(request)

    def admit(self, request: Request) -> bool:
        """Ask a prefill node for the request's prompt, or begin the prompt on this node. Return
        False if neither is possible now."""
        match = self._to_be_asked(request)
        if match is None:
            return self._admit_here(request)
        if goes_on_here(request) and not self._has_place:
            return False
        self._transfers.ask(request, match)
        return True

    def _admit_here(self, request: Request) -> bool:
        transfer = self._transfers.first_wanted
        if transfer is not None and _goes_before(transfer.request, request):
            return False
        admitted = super().admit(request)
        if not (admitted or self._gives_way(request)):
            self._blocked = request
        return admitted

    def _gives_way(self, request: Request) -> bool:
        """Return True if an earlier request waits for memory to be computed on this node."""
        blocked = self._blocked
        if blocked is None or blocked not in self._scheduler.waiting:
            return False
        return _goes_before(blocked, request)

    def _to_be_asked(self, request: Request) -> Match | None:
        """Return the cache match of a prompt to be computed by a prefill node; None if this node
        computes it."""
        if not self._prefill_available or request.handover_lost or request.output:
            return None
        if request.pictures is not None and not request.pictures.are_files:
            # Their bytes are not as a client sent them.
            return None
        if request.scoring is not None or not (request.sampling.draws or request.forks):
            # A prompt's scores are larger than its tokens, and the client needs them here. No
            # client reads the state left by a prompt alone.
            return None
        match = self._cache.match(request.keys, request.salt, request.cursor)
        if request.carrier is not None and match.usable_tokens == len(request.prompt) - 1:
            # The hand-over of its common prompt has brought this state.
            return None
        decision = self._router.prefill_place(match, self._encodes(request, usable_here(match)))
        # A prefill node already waits for a gateway's transfer, so there is no choice.
        if request.gateway_transfer is None:
            request.route = report(decision)
            if decision.choice is m.Choice.HERE and self._sees(request, match):
                return None
        return match

    def _sees(self, request: Request, match: Match) -> bool:
        """Return True if this node can compute the pictures of the prompt's missing part."""
        pictures = self._scheduler.pictures
        if request.pictures is None or pictures is None:
            return True
        return not pictures.missing(request, usable_here(match))

    @property
    def _has_place(self) -> bool:
        """True if the running batch has a place for one more answer. False while a transfer waits
        for memory: more transfers would only hold memory on the prefill node."""
        places, taken = self._scheduler.seats.places, len(self._scheduler.running)
        return self._transfers.first_wanted is None and taken + self._transfers.coming < places

    def advance(self) -> None:
        """Start fetches, hand-backs, offers, allocations and pulls, as limits allow."""
        self._fetches.grants.advance()
        while self._fetches.released:
            self._go_on(self._fetches.released.popleft())
        self._hand_backs.advance()
        self._offers.advance(self._prefill_available, len(self.requests))
        self._transfers.grant(self._gives_way)
        self._pulls.sources.advance()

    def _go_on(self, request: Request) -> None:
        """Continue a request after its fetch, with any outcome: offer an inherited state, else
        requeue. Skip a request aborted meanwhile."""
        if not isinstance(request.state, Waiting):
            return
        if request.purpose is m.Purpose.INHERIT:
            self._offers.fetched(request)
        else:
            self._scheduler.requeue(request)

    def _pull_asked(self, message: m.PullAsked) -> None:
        transfer = self._transfers.at(
            message.transfer_id, DecodeTransferState.ASKED, DecodeTransferState.WANTED
        )
        request = None if transfer is None else transfer.request
        inherits = request is not None and request.purpose is m.Purpose.INHERIT
        if inherits and not self._offers.may_pull(message):
            return
        self._pulls.asked(message, request)
        if inherits and not self._pulls.is_pinned(message.transfer_id):
            self._offers.gone(message.transfer_id)

    def _grant_wanted(self, message: m.GrantWanted) -> None:
        transfer = self._transfers.at(message.transfer_id, DecodeTransferState.ASKED)
        if transfer is None:
            return
        if transfer.request.purpose is m.Purpose.INHERIT and not self._offers.is_pulled(transfer):
            return
        self._transfers.want_grant(transfer)

    def _ready(self, message: m.RemoteReady) -> None:
        """Emit the first token, sampled by the prefill node, to the client. Later tokens wait until
        the transfer is complete."""
        named = (message.token, *(token for token, _ in message.top))
        if not (all(map(self._intake.is_token, named)) and math.isfinite(message.logprob)):
            self._emit(m.HandoverCancelled(message.transfer_id))
            reason = f"its first token is {message.token} with a logprob of {message.logprob}"
            self._lost(m.HandoverFailed(message.transfer_id, reason))
            return
        transfer = self._transfers.at(
            message.transfer_id, DecodeTransferState.GRANTED, DecodeTransferState.BARE
        )
        if transfer is None:
            return
        request = transfer.request
        if request.purpose is m.Purpose.INHERIT:
            self._offers.taken(transfer, message)
            return
        request.hit = self._transfers.names.told_here(pair_hit(message.hit, transfer.held))
        request.prefilled_on = message.prefilled_on
        request.pulled = message.pulled
        request.route = joined(request.route, message.route)
        request.prefill_choice = message.prefill_choice
        if request.purpose is m.Purpose.HAND_BACK:
            # The token shows only that the prompt's prefix is on the other node.
            self._answered(transfer, m.FinishReason.LENGTH)
            return
        computed = message.hit.prompt_tokens - message.hit.usable_tokens
        if request.asked_at is not None and computed > 0:
            usable = message.hit.usable_tokens
            work = computed + round(self._encodes(request, usable))
            self._router.costs.there.add(work, time.monotonic() - request.asked_at)
        if request.forks:
            # The token behind the common prompt is known: it is the last token of each fork's
            # prompt.
            transfer.move(DecodeTransferState.READY)
            return
        first = Sampled(message.token, message.logprob, message.margin, message.top)
        self.on_token(request, first)
        ended = self.finish_reason(request)
        if ended is not None:
            self._answered(transfer, ended)
            return
        assert isinstance(request.state, Receiving)
        allocation = request.state.allocation
        transfer.step = self._early.consider(transfer.id, request, allocation, message.tail_seconds)
        transfer.move(DecodeTransferState.READY)

    def _answered(self, transfer: DecodeTransfer, reason: m.FinishReason) -> None:
        """Finish a request already answered by its first token, without waiting for the rest of the
        transfer."""
        request = transfer.request
        if transfer.state is DecodeTransferState.BARE:
            request.transfer = _NOTHING_SENT
        else:
            self._emit(m.HandoverCancelled(transfer.id))
        self._transfers.give_up(transfer)
        self.finish_elsewhere(request, reason)

    def _done(self, message: m.RemoteDone) -> None:
        """Begin decoding, because every layer chunk arrived and its digest matched. If the
        transfer's early decode step still runs, wait for its end."""
        transfer = self._transfers.at(message.transfer_id, DecodeTransferState.READY)
        if transfer is None:
            return
        if transfer.running_step is None:
            self._commit(transfer, message)
        else:
            transfer.move(DecodeTransferState.DONE)
            transfer.done = message

    def _commit(self, transfer: DecodeTransfer, message: m.RemoteDone) -> None:
        """Insert the prompt's pages into the prefix tree and begin decoding. If an early decode
        step ran, its token is the answer's second one."""
        request = transfer.request
        allocation, second = self._transfers.commit(transfer)
        sent = request.transfer = message.transfer
        if request.pulled is not None:
            request.pulled = replace(request.pulled, timeline=message.pull)
        if sent.bytes:
            self._router.costs.sent.add(sent.bytes, sent.hidden_seconds + sent.exposed_seconds)
        self._cache.accept_received(allocation)
        whole = len(request.prompt) // PAGE_TOKENS * PAGE_TOKENS
        if whole:
            self._cache.insert(allocation, whole, None, CheckpointKind.PROMPT_END)
        length = len(request.prompt)
        # A step has forwarded the first token and left the state behind it in the other slot.
        computed, slot = (length, 0) if second is None else (length + 1, 1)
        progress = self._scheduler.progress.begin(tuple(allocation.working_slots), computed, slot)
        request.move(Decoding(allocation, progress))
        if request.forks:
            self.on_prompt_end(request)
        else:
            self.take_over(request, second)

    def _lost(self, message: m.HandoverFailed) -> None:
        """Retry a lost hand-over at another prefill node, or prefill the prompt on this node. The
        granted pages stay quarantined until the writer's fence."""
        transfer = self._transfers.live(message.transfer_id)
        if transfer is None:
            return
        request = transfer.request
        self._transfers.give_up(transfer)
        request.handover_lost |= not message.elsewhere or bool(request.output)
        request.prefilled_on = "local"
        request.prefill_choice = None
        request.hit = None
        if request.output:
            # The first token was sent and will be part of the next allocation; the client's prompt
            # is not.
            match = self._cache.match(request.keys, request.salt, request.cursor)
            request.hit = breakdown(match, self._ledger.lost(match))
        request.move(Waiting())
        match request.purpose:
            case m.Purpose.ANSWER:
                self._scheduler.requeue(request)
            case m.Purpose.INHERIT:
                self._offers.lost(transfer.id, message.elsewhere)
            case m.Purpose.HAND_BACK:
                self._hand_backs.lost(request, message)


def _arrival(request: Request) -> tuple[bool, float]:
    """Return the sort key of a request waiting for memory: preempted requests first, then by
    arrival."""
    return not request.begun, request.created


def _goes_before(one: Request, other: Request) -> bool:
    return _arrival(one) < _arrival(other)

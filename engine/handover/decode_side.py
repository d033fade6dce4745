"""The receiving half of hand-overs: a decode engine's requests, and who computes their prompts.

Rooms live in receiving/; what is fetched, handed back and offered in fetching/, receiving/ and
leaving/. Messages of rooms that are over are dropped. Thread rule: the engine loop's.
Invariants: a prompt is asked for only while its answer has a place here, so what is granted is
decoded; for room in the cache, rooms and prompts that are computed here wait for each other in the
order of their arrival, behind those that were begun before.
"""

import math
import time
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.accounting import breakdown
from tasuki.engine.request import (
    Aborted,
    AwaitingPrefill,
    Decoding,
    Receiving,
    Request,
    Waiting,
)
from tasuki.engine.routing import report, usable_here
from tasuki.engine.runner.base import DrawnTokens
from tasuki.engine.scheduling.scheduled_forward import AnswerRows
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import CheckpointKind, Match
from tasuki.pycache.layout import PAGE_TOKENS

from .answers import Answers
from .base import Handover, HandoverContext, RequestInbox
from .fetching.fetches import Fetches
from .leaving.offers import Offers
from .pull_sender import PullSender
from .receiving.decode_room import Asked, Bare, DecodeRoom, Done, Granted, Ready, Wanted
from .receiving.decode_rooms import DecodeRooms, goes_on_here
from .receiving.early_start import EarlyStart
from .receiving.hand_backs import HandBacks
from .receiving.pair_hit import pair_hit

_NOTHING_SENT = m.TransferReport(bytes=0, windows=0, pages=0, hidden_seconds=0, exposed_seconds=0)


class DecodeHandover(Handover):
    def __init__(self, context: HandoverContext, answers: Answers, early: EarlyStart) -> None:
        """answers: who requests are of, wherever their prompts are computed. early: what may decode
        before a prompt has landed."""
        super().__init__(context)
        self._answers = answers
        self._early = early
        self._rooms = DecodeRooms(context, early)
        self._pulls = PullSender(context)
        self._fetches = Fetches(context)
        self._hand_backs = HandBacks(context, answers, self._rooms)
        self._offers = Offers(context, self._rooms, self._fetches)
        self._prefill_available = False
        self._others_wait = 0.0
        """Seconds of prefill that every prefill node has to do for other decode nodes."""
        self._blocked: Request | None = None
        """The first of those that found no room to be computed here, while it waits."""

    @property
    def requests(self) -> Collection[Request]:
        return self._answers.requests

    @property
    def admission_terms(self) -> Hashable:
        wanted = self._rooms.first_wanted
        return self._prefill_available, self._has_place, None if wanted is None else wanted.id

    @property
    def waits(self) -> bool:
        at_rest = (self._pulls.sources, self._fetches.grants)
        return self._rooms.waits or any(queue.waiting for queue in at_rest)

    @property
    def early_counters(self) -> dict[str, int]:
        return self._early.counters

    def on_tokens(self, answers: AnswerRows, drawn: DrawnTokens) -> None:
        self._answers.on_tokens(answers, drawn)

    def on_token(self, request: Request, sampled: Sampled) -> None:
        self._answers.on_token(request, sampled)

    def until_end(self, request: Request, tokens: Sequence[Sampled]) -> int:
        return self._answers.until_end(request, tokens)

    def on_scores(self, request: Request, row: int, scores: PromptScores) -> None:
        self._answers.on_scores(request, row, scores)

    def on_prompt_end(self, request: Request) -> None:
        self._answers.on_prompt_end(request)

    def reject(self, request: Request, error: m.RequestError) -> None:
        self._answers.reject(request, error)

    def handle(self, message: RequestInbox) -> None:
        match message:
            case m.GrantWanted(room) if room in self._fetches:
                self._fetches.grant_wanted(room)
            case m.RemoteDone(room) if room in self._fetches:
                self._fetches.done(message)
            case m.WriterFenced(room) if room in self._fetches:
                self._fetches.fenced(room)
            case m.FetchLost(room):
                if room in self._fetches:
                    self._fetches.lost(message)
            case m.FetchAdvised():
                self._fetch_first(message)
            case m.Submit(purpose=m.Purpose.HAND_BACK):
                self._hand_backs.submit(message, self._prefill_available)
            case m.Submit():
                self._submit(message)
            case m.Abort(request_id):
                self._answers.abort(request_id, self._abort_request)
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
                self._step_ended()
            case m.HandoverFailed():
                self._lost(message)
            case m.WriterFenced(room):
                self._rooms.fenced(room)
            case m.PullAsked():
                self._pull_asked(message)
            case m.PullEnd():
                self._pulls.end(message)
            case m.PassOn():
                self._offers.pass_on(message)
            case m.LeaveToHeirs(query_id):
                self._offers.leave(query_id, len(self.requests))
            case m.EndLeaving():
                self._offers.end_leaving()
            case m.AlreadyHeld(room):
                self._offers.held(room)
            case _:
                self._answers.handle(message)

    def _submit(self, message: m.Submit) -> None:
        refusal = None
        if message.gateway_room is not None and message.gateway_room.room in self._rooms:
            refusal = m.RequestError(
                m.ErrorKind.INVALID, f"room {message.gateway_room.room} is in use: make another"
            )
        self._answers.submit(message, refusal, self._elsewhere)

    def _elsewhere(self, request: Request) -> float:
        """What a request that comes now waits for at the prefill nodes, beside this node's own."""
        if not (self._prefill_available and self._others_wait):
            return 0.0
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        new = match.prompt_tokens - usable_here(match)
        return self._others_wait if new > self._router.local_tokens else 0.0

    def _fetch_first(self, message: m.FetchAdvised) -> None:
        """The room's prompt waits in no queue until its beginning is here, or is not to be had;
        then it is considered anew."""
        room = self._rooms.at(message.room, Asked)
        if room is not None:
            self._rooms.give_up(room)
            room.request.move(Waiting())
            self._fetches.begin(message, room.request)

    def _abort_request(self, request: Request) -> None:
        match request.state:
            case AwaitingPrefill(room_id) | Receiving(room_id):
                room = self._rooms.live(room_id)
                assert room is not None
                self._rooms.give_up(room)
                self._emit(m.HandoverCancelled(room_id))
                request.move(Aborted())
                self._answers.end(request, m.FinishReason.ABORT)
            case _:
                self._answers.abort_request(request)

    def admit(self, request: Request) -> bool:
        """Asked for at a prefill node, or begun here."""
        match = self._to_be_asked(request)
        if match is None:
            return self._admit_here(request)
        if goes_on_here(request) and not self._has_place:
            return False
        self._rooms.ask(request, match)
        return True

    def _admit_here(self, request: Request) -> bool:
        room = self._rooms.first_wanted
        if room is not None and _goes_before(room.request, request):
            return False
        admitted = self._answers.admit(request)
        if not (admitted or self._gives_way(request)):
            self._blocked = request
        return admitted

    def _gives_way(self, request: Request) -> bool:
        """To a prompt that waits to be computed here and came before."""
        blocked = self._blocked
        if blocked is None or blocked not in self._scheduler.waiting:
            return False
        return _goes_before(blocked, request)

    def _to_be_asked(self, request: Request) -> Match | None:
        """What is here of a prompt that a prefill node is to compute; None where this one is."""
        if not self._prefill_available or request.handover_lost or request.output:
            return None
        if request.scoring is not None or not (request.sampling.draws or request.forks):
            # Scores of a prompt are larger than its tokens and go to the client here; and nobody
            # would read what a prompt alone leaves.
            return None
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        if request.carrier is not None and match.usable_tokens == len(request.prompt) - 1:
            # What the hand-over of its prompt was for.
            return None
        decision = self._router.prefill_place(match)
        # Of a room that a gateway made, a prefill node already waits for us: nothing is weighed.
        if request.gateway_room is None:
            request.route = report(decision)
            if decision.choice is m.Choice.HERE:
                return None
        return match

    @property
    def _has_place(self) -> bool:
        """Whether one answer more has a place here. None has while a room waits for memory: more
        would only hold what the prefill node has."""
        places, taken = self._scheduler.seats.places, len(self._scheduler.running)
        return self._rooms.first_wanted is None and taken + self._rooms.coming < places

    def advance(self) -> None:
        """Ask, offer and grant as far as there is room."""
        self._fetches.grants.advance()
        self._fetches.release(self._go_on)
        self._hand_backs.advance()
        self._offers.advance(self._prefill_available, len(self.requests))
        self._rooms.grant(self._gives_way)
        self._pulls.sources.advance()

    def _go_on(self, request: Request) -> None:
        """What it waited for is here, or is not to be had."""
        if request.purpose is m.Purpose.INHERIT:
            self._offers.fetched(request)
        else:
            self._scheduler.requeue(request)

    def _pull_asked(self, message: m.PullAsked) -> None:
        room = self._rooms.at(message.room, Asked | Wanted)
        request = None if room is None else room.request
        inherits = request is not None and request.purpose is m.Purpose.INHERIT
        if inherits and not self._offers.may_pull(message):
            return
        self._pulls.asked(message, request)
        if inherits and not self._pulls.is_pinned(message.room):
            self._offers.gone(message.room)

    def _grant_wanted(self, message: m.GrantWanted) -> None:
        room = self._rooms.at(message.room, Asked)
        if room is None:
            return
        if room.request.purpose is m.Purpose.INHERIT and not self._offers.is_pulled(room):
            return
        self._rooms.want_grant(room)

    def _ready(self, message: m.RemoteReady) -> None:
        """The first token exists: it goes to the client; nothing else does before done."""
        named = (message.token, *(token for token, _ in message.top))
        if not (all(map(self._intake.is_token, named)) and math.isfinite(message.logprob)):
            self._emit(m.HandoverCancelled(message.room))
            reason = f"its first token is {message.token} with a logprob of {message.logprob}"
            self._lost(m.HandoverFailed(message.room, reason))
            return
        room = self._rooms.at(message.room, Granted | Bare)
        if room is None:
            return
        request = room.request
        if request.purpose is m.Purpose.INHERIT:
            self._offers.taken(room, message)
            return
        request.hit = self._rooms.names.told_here(pair_hit(message.hit, room.held))
        request.prefilled_on = message.prefilled_on
        request.pulled = message.pulled
        request.route = joined(request.route, message.route)
        request.prefill_choice = message.prefill_choice
        if request.purpose is m.Purpose.HAND_BACK:
            # The token shows that the prompt's beginning is over there, and nothing else.
            self._answered(room, m.FinishReason.LENGTH)
            return
        computed = message.hit.prompt_tokens - message.hit.usable_tokens
        if request.asked_at is not None and computed > 0:
            self._router.costs.there.add(computed, time.monotonic() - request.asked_at)
        if request.forks:
            # The token behind its prompt is known: it is the last of theirs.
            room.move(Ready(None))
            return
        first = Sampled(message.token, message.logprob, message.margin, message.top)
        self._answers.on_token(request, first)
        ended = self._answers.finish_reason(request)
        if ended is not None:
            self._answered(room, ended)
            return
        assert isinstance(request.state, Receiving)
        allocation = request.state.allocation
        step = self._early.consider(room.id, request, allocation, message.tail_seconds)
        room.move(Ready(step))

    def _answered(self, room: DecodeRoom, reason: m.FinishReason) -> None:
        """By its first token: nobody will read what landed, so the rest is not waited for."""
        request = room.request
        if isinstance(room.state, Bare):
            request.transfer = _NOTHING_SENT
        else:
            self._emit(m.HandoverCancelled(room.id))
        self._rooms.give_up(room)
        self._answers.finish_elsewhere(request, reason)

    def _done(self, message: m.RemoteDone) -> None:
        """Every window landed and matched: the request decodes, behind the room's step where one
        runs."""
        room = self._rooms.at(message.room, Ready)
        if room is None:
            return
        step = room.running_step
        if step is None:
            self._commit(room, message)
        else:
            room.move(Done(message, step))

    def _step_ended(self) -> None:
        for room, message in self._rooms.step_ended():
            self._commit(room, message)

    def _commit(self, room: DecodeRoom, message: m.RemoteDone) -> None:
        """The prompt's pages enter the tree; the request decodes, with the token that its early
        step drew, if there was one."""
        request = room.request
        allocation, second = self._rooms.commit(room)
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
            self._answers.on_prompt_end(request)
        else:
            self._answers.take_over(request, second)

    def _lost(self, message: m.HandoverFailed) -> None:
        """Another prefill node is asked, or the prompt is prefilled here; what was granted waits
        for the writer's fence."""
        room = self._rooms.live(message.room)
        if room is None:
            return
        request = room.request
        self._rooms.give_up(room)
        request.handover_lost |= not message.elsewhere or bool(request.output)
        request.prefilled_on = "local"
        request.prefill_choice = None
        request.hit = None
        if request.output:
            # The first token is out and will be part of the next allocation; the client's prompt is
            # not.
            match = self._cache.match(request.prompt, request.salt, request.cursor)
            request.hit = breakdown(match, self._ledger.lost(match))
        request.move(Waiting())
        match request.purpose:
            case m.Purpose.ANSWER:
                self._scheduler.requeue(request)
            case m.Purpose.INHERIT:
                self._offers.lost(room.id, message.elsewhere)
            case m.Purpose.HAND_BACK:
                self._hand_backs.lost(request, message)


def _arrival(request: Request) -> tuple[bool, float]:
    """Orders those that wait for room: what was begun and gave way first, then as they came."""
    return not request.begun, request.created


def _goes_before(one: Request, other: Request) -> bool:
    return _arrival(one) < _arrival(other)


def joined(here: m.RouteReport | None, there: m.RouteReport | None) -> m.RouteReport | None:
    """What this node judged, and then the prefill node."""
    if here is None or there is None:
        return here
    return m.RouteReport(there.choice, {**here.estimates, **there.estimates})

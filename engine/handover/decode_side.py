"""The receiving half of hand-overs: rooms that a decode engine asked for, allocations it granted.

Owns the rooms until their ids are owned by a request or the tree again. Emits what the decode
node's hand-over client acts on. Messages of rooms that are over are dropped.
Thread rule: the engine loop's.
Invariants: a prompt is asked for only while its answer has a place here, so what is granted is
decoded; for room in the cache, rooms and prompts that are computed here wait for each other in the
order of their arrival, behind those that were begun before.
"""

import math
import secrets
import time
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.accounting.evictions import breakdown
from tasuki.engine.request import (
    Aborted,
    AwaitingPrefill,
    Decoding,
    Finished,
    Receiving,
    Request,
    Waiting,
)
from tasuki.engine.routing.router import report
from tasuki.engine.runner.drawn_tokens import DrawnTokens
from tasuki.engine.scheduling.scheduled_forward import AnswerRows
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import CheckpointKind, ImpossibleRequest, Match
from tasuki.pycache.layout import PAGE_TOKENS

from .answers import Answers
from .at_rest import AtRestQueue
from .base import Handover, HandoverContext, RequestInbox
from .decode_room import (
    Asked,
    Bare,
    DecodeRoom,
    Done,
    Fenced,
    Granted,
    Over,
    Quarantined,
    Ready,
    Wanted,
)
from .early_start import EarlyStart
from .fetching.fetches import Fetches
from .leaving.heirs import Heirs
from .leaving.passed_on import PassedOn
from .leaving.state_offers import StateOffers
from .pair_hit import pair_hit
from .pull_sender import PullSender
from .room_names import RoomNames

_FIRST_TOKEN_ALONE = SamplingParams(max_new_tokens=1)
"""What is asked for where no token of the prefill node's is wanted: it draws one anyway."""

MOST_HANDED_BACK = 16
"""Prompts at a time: each is read from the arena and sent while answers go on."""
MOST_LEAVING = 1024
"""That wait for it: of a node that drains, all sessions leave at once."""

_NOTHING_SENT = m.TransferReport(bytes=0, windows=0, pages=0, hidden_seconds=0, exposed_seconds=0)


class DecodeHandover(Handover):
    def __init__(self, context: HandoverContext, answers: Answers, early: EarlyStart) -> None:
        """answers: who requests are of, wherever their prompts are computed. early: what may decode
        before a prompt has landed."""
        super().__init__(context)
        self._answers = answers
        self._early = early
        self._pulls = PullSender(context)
        self._generations = count(1)
        self._rooms: dict[m.RoomId, DecodeRoom] = {}
        self._coming = 0
        """Live rooms whose answers are to go on here."""
        self._prefill_available = False
        self._others_wait = 0.0
        """Seconds of prefill that every prefill node has to do for other decode nodes."""
        self._blocked: Request | None = None
        """The first of those that found no room to be computed here, while it waits."""
        self._wanted: deque[DecodeRoom] = deque()
        self._leaving: deque[Request] = deque()
        """To be handed back; maybe some that were aborted."""
        self._handed_back = 0
        """Live rooms of such."""
        self._heirs = Heirs(context)
        self._fetches = Fetches(context)
        self._passed_on = PassedOn(context, self._fetches)
        self._grants = AtRestQueue(context.runner, self._emit_grant)
        self._names = RoomNames()

    @property
    def requests(self) -> Collection[Request]:
        return self._answers.requests

    @property
    def admission_terms(self) -> Hashable:
        wanted = self._wanted[0].id if self._wanted else None
        return self._prefill_available, self._has_place, wanted

    @property
    def waits(self) -> bool:
        at_rest = (self._grants, self._pulls.sources, self._fetches.grants)
        return any(queue.waiting for queue in at_rest)

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
            case m.WriterFenced():
                self._fenced(message)
            case m.PullAsked():
                self._pull_asked(message)
            case m.PullEnd():
                self._pulls.end(message)
            case m.PassOn():
                self._passed_on.take(message)
            case m.LeaveToHeirs(query_id):
                self._heirs.begin(query_id, len(self.requests))
            case m.EndLeaving():
                self._end_leaving()
            case m.AlreadyHeld(room_id):
                self._already_held(room_id)
            case _:
                self._answers.handle(message)

    def _submit(self, message: m.Submit) -> None:
        if message.purpose is m.Purpose.HAND_BACK:
            self._hand_back(message)
            return
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
        new = match.prompt_tokens - match.usable_tokens
        return self._others_wait if new > self._router.local_tokens else 0.0

    def _hand_back(self, message: m.Submit) -> None:
        """Ask a prefill node for one token behind what is held here of the prompt, so that it pulls
        that. Takes no place and no memory here, and waits for nobody's answer."""
        match = self._cache.match(message.prompt, message.salt, message.cursor)
        held = message.prompt[: match.usable_tokens + 1]
        request = self._answers.take_aside(replace(message, prompt=held), self._no_hand_back())
        if request is None:
            return
        if match.usable_tokens < PAGE_TOKENS:
            # Not worth a room; and no error, which would show to whom it does not concern whether
            # some tokens of a page are cached.
            self._answers.finish_elsewhere(request, m.FinishReason.LENGTH)
            return
        self._leaving.append(request)
        self._hand_next_back()

    def _hand_next_back(self) -> None:
        while self._leaving and self._handed_back < MOST_HANDED_BACK:
            request = self._leaving.popleft()
            if isinstance(request.state, Waiting):
                match = self._cache.match(request.prompt, request.salt, request.cursor)
                self._handed_back += 1
                self._ask(request, match)

    def _leave_to_heirs(self) -> None:
        beside = len(self.requests)
        if not (self._prefill_available or beside) and self._heirs.begun:
            self._end_leaving()
        while self._prefill_available and (request := self._heirs.next(beside)) is not None:
            self._heirs.opened(self._ask_heir(request), request)
        self._heirs.end_if_over(beside)

    def _pass_on(self) -> None:
        while (request := self._passed_on.next(self._prefill_available)) is not None:
            self._passed_on.opened(self._ask_heir(request), request)

    def _ask_heir(self, request: Request) -> m.RoomId:
        self._ask(request, self._cache.match(request.prompt, request.salt))
        assert isinstance(request.state, AwaitingPrefill)
        return request.state.room

    def _offers(self, room: m.RoomId) -> StateOffers:
        """Whose room it is in which a state is offered."""
        return self._passed_on if room in self._passed_on else self._heirs

    def _end_leaving(self) -> None:
        for room_id in self._heirs.end():
            self._emit(m.HandoverCancelled(room_id))
            self._end_room_of_heir(self._rooms[room_id], Aborted())

    def _already_held(self, room_id: m.RoomId) -> None:
        room = self._rooms.get(room_id)
        if room is not None:
            self._offers(room_id).held(room_id)
            self._end_room_of_heir(room, Finished())

    def _fetch_first(self, message: m.FetchAdvised) -> None:
        """The room's prompt waits in no queue until its beginning is here, or is not to be had;
        then it is considered anew."""
        room = self._rooms.get(message.room)
        if room is None or not isinstance(room.state, Asked):
            return
        self._give_up(room)
        room.request.move(Waiting())
        self._fetches.begin(message, room.request)

    def _end_room_of_heir(self, room: DecodeRoom, end: Aborted | Finished) -> None:
        self._give_up(room)
        room.request.move(end)

    def _no_hand_back(self) -> m.RequestError | None:
        if not self._prefill_available:
            return _not_handed_back("no prefill node is connected")
        if len(self._leaving) >= MOST_LEAVING:
            return _not_handed_back(f"{MOST_LEAVING} wait to be handed back, as many as may")
        return None

    def _abort_request(self, request: Request) -> None:
        match request.state:
            case AwaitingPrefill(room_id) | Receiving(room_id):
                self._give_up(self._rooms[room_id])
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
        if _goes_on_here(request) and not self._has_place:
            return False
        self._ask(request, match)
        return True

    def _admit_here(self, request: Request) -> bool:
        room = self._wanted[0] if self._wanted else None
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
        places = self._scheduler.seats.places
        return not self._wanted and len(self._scheduler.running) + self._coming < places

    def _ask(self, request: Request, match: Match) -> None:
        """Ask a prefill node for the prompt; nothing is held here until it is about to start."""
        named, request.gateway_room = request.gateway_room, None
        if named is not None and named.room in self._rooms:
            # Another request of that room was queued before this one.
            named = None
        ticket = m.Ticket(
            room=m.RoomId(secrets.randbits(63)) if named is None else named.room,
            generation=next(self._generations),
            kv_matched=match.kv_tokens // PAGE_TOKENS * PAGE_TOKENS,
            sampling=_FIRST_TOKEN_ALONE if request.forks else request.sampling,
            salt=request.salt,
            marks=request.marks,
            offered=match.usable_tokens,
            caller=request.caller,
            priority=request.priority,
            due_seconds=self._scheduler.due_seconds(request),
        )
        request.ticket = ticket
        request.asked_at = time.monotonic()
        request.move(AwaitingPrefill(ticket.room))
        self._rooms[ticket.room] = DecodeRoom(ticket.room, request, breakdown(match, None))
        self._coming += _goes_on_here(request)
        self._names.note(ticket.room, request.told_as)
        sender = None if named is None else named.sender
        self._emit(
            m.HandoverWanted(
                request.told_as,
                ticket,
                request.prompt,
                sender,
                request.cursor,
                request.purpose,
                request.purpose is m.Purpose.ANSWER and not request.fetch_tried,
            )
        )

    def _pull_asked(self, message: m.PullAsked) -> None:
        room = self._rooms.get(message.room)
        request = None
        if room is not None and isinstance(room.state, Asked | Wanted):
            request = room.request
        inherits = request is not None and request.purpose is m.Purpose.INHERIT
        if inherits and not self._offers(message.room).may_pull(message):
            self._emit(m.PullRefused(message.room, "as much was left to heirs as may be"))
            return
        self._pulls.asked(message, request)
        if inherits and not self._pulls.is_pinned(message.room):
            self._offers(message.room).gone(message.room)

    def _grant_wanted(self, message: m.GrantWanted) -> None:
        room = self._rooms.get(message.room)
        if room is None or not isinstance(room.state, Asked):
            return
        ticket = room.request.ticket
        inherits = room.request.purpose is m.Purpose.INHERIT
        if inherits and not self._offers(room.id).is_pulled(room.id):
            # It has it, or would compute it: that may wait until somebody asks for an answer.
            self._emit(m.HandoverCancelled(room.id))
            self._offers(room.id).refused(room.id)
            self._end_room_of_heir(room, Finished())
            return
        if _goes_on_here(room.request):
            room.move(Wanted())
            self._wanted.append(room)
        else:
            assert ticket is not None
            room.move(Bare())
            end = -(-len(room.request.prompt) // PAGE_TOKENS)
            self._emit(m.HandoverGranted(m.Grant(room.id, ticket.generation, end, (), None)))

    def advance(self) -> None:
        """Allocation and grant for every room whose sender is about to start, as far as there is
        room; emit what is granted or pinned once its ids are at rest."""
        self._grants.advance()
        self._fetches.grants.advance()
        self._fetches.release(self._go_on)
        self._hand_next_back()
        self._leave_to_heirs()
        self._pass_on()
        while self._wanted and self._granted(self._wanted[0]):
            self._wanted.popleft()
        self._pulls.sources.advance()

    def _go_on(self, request: Request) -> None:
        """What it waited for is here, or is not to be had."""
        if request.purpose is m.Purpose.INHERIT:
            self._passed_on.fetched(request)
        else:
            self._scheduler.requeue(request)

    def _granted(self, room: DecodeRoom) -> bool:
        """Whether the room waits no longer for an allocation."""
        wanted, room_version = room.state, self._cache.room_version
        if not isinstance(wanted, Wanted):
            return True
        if wanted.refused_at == room_version or self._gives_way(room.request):
            return False
        try:
            granted = self._grant(room)
        except ImpossibleRequest:
            # No other sender would find more room here.
            room.request.handover_lost = True
            room.move(Asked())
            self._emit(m.HandoverDeclined(room.id))
            return True
        wanted.refused_at = room_version
        return granted

    def _grant(self, room: DecodeRoom) -> bool:
        request = room.request
        allocation = self._cache.allocate_to_receive(
            request.prompt,
            salt=request.salt,
            capacity_tokens=request.next_capacity,
            working_slots=self._working_slots,
            cursor=request.cursor,
        )
        if allocation is None:
            return False
        first = allocation.shared_pages
        pages = -(-len(request.prompt) // PAGE_TOKENS)
        request.move(Receiving(room.id, allocation))
        room.move(Granted())
        assert request.ticket is not None
        grant = m.Grant(
            room=room.id,
            generation=request.ticket.generation,
            first_page=first,
            pages=tuple(allocation.pages[first:pages].tolist()),
            slot=allocation.working_slots[0],
        )
        self._grants.put(grant)
        return True

    def _emit_grant(self, grant: m.Grant) -> None:
        room = self._rooms.get(grant.room)
        if room is None:
            return
        if room.live:
            self._emit(m.HandoverGranted(grant))
        else:
            # Lost before anybody was given the ids: nobody will say that it writes no more.
            self._fenced(m.WriterFenced(room.id))

    def _ready(self, message: m.RemoteReady) -> None:
        """The first token exists: it goes to the client; nothing else does before done."""
        named = (message.token, *(token for token, _ in message.top))
        if not (all(map(self._intake.is_token, named)) and math.isfinite(message.logprob)):
            self._emit(m.HandoverCancelled(message.room))
            reason = f"its first token is {message.token} with a logprob of {message.logprob}"
            self._lost(m.HandoverFailed(message.room, reason))
            return
        room = self._rooms.get(message.room)
        if room is None or not isinstance(room.state, Granted | Bare):
            return
        request = room.request
        if request.purpose is m.Purpose.INHERIT:
            self._offers(room.id).taken(room.id, message.pulled, message.prefilled_on)
            self._end_room_of_heir(room, Finished())
            return
        request.hit = self._names.told_here(pair_hit(message.hit, room.held))
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
        self._give_up(room)
        self._answers.finish_elsewhere(request, reason)

    def _done(self, message: m.RemoteDone) -> None:
        """Every window landed and matched: the request decodes, behind the room's step where one
        runs."""
        room = self._rooms.get(message.room)
        if room is None or not isinstance(room.state, Ready):
            return
        step = room.running_step
        if step is None:
            self._commit(room, message)
        else:
            room.move(Done(message, step))

    def _step_ended(self) -> None:
        """Free what was fenced while the step ran, and commit what was done."""
        for room in list(self._rooms.values()):
            if isinstance(room.state, Fenced) and room.running_step is None:
                self._free(room, room.state.quarantine)
        for room in list(self._rooms.values()):
            if isinstance(room.state, Done) and room.running_step is None:
                self._commit(room, room.state.message)

    def _commit(self, room: DecodeRoom, message: m.RemoteDone) -> None:
        """The prompt's pages enter the tree; the request decodes, with the token that its early
        step drew, if there was one."""
        request = room.request
        assert isinstance(request.state, Receiving)
        allocation = request.state.allocation
        second = None if room.step is None else self._early.take(room.step)
        self._coming -= 1
        self._forget(room)
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
        room = self._rooms.get(message.room)
        if room is None or not room.live:
            return
        request = room.request
        self._give_up(room)
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
        if request.purpose is m.Purpose.ANSWER:
            self._scheduler.requeue(request)
        elif request.purpose is m.Purpose.INHERIT:
            self._offers(room.id).lost(room.id, message.elsewhere)
        elif message.elsewhere:
            self._leaving.appendleft(request)
        else:
            self._answers.reject(request, _not_handed_back(message.reason))

    def _give_up(self, room: DecodeRoom) -> None:
        """REQUIRES: the room is live. What was granted is quarantined; a step's token is worth
        nothing."""
        self._coming -= _goes_on_here(room.request)
        state = room.request.state
        if not isinstance(state, Receiving):
            self._forget(room)
            return
        step = room.step
        if step is not None:
            step.cancel()
        room.move(Quarantined(self._cache.quarantine(state.allocation), step))

    def _fenced(self, message: m.WriterFenced) -> None:
        room = self._rooms.get(message.room)
        if room is None or not isinstance(room.state, Quarantined):
            return
        quarantine, step = room.state.quarantine, room.running_step
        if step is None:
            self._free(room, quarantine)
        else:
            room.move(Fenced(quarantine, step))

    def _free(self, room: DecodeRoom, quarantine: int) -> None:
        if room.step is not None:
            self._early.drop()
        self._cache.free_quarantined(quarantine)
        self._forget(room)

    def _forget(self, room: DecodeRoom) -> None:
        room.move(Over())
        del self._rooms[room.id]
        self._handed_back -= room.request.purpose is m.Purpose.HAND_BACK


def _not_handed_back(reason: str) -> m.RequestError:
    return m.RequestError(
        m.ErrorKind.NOT_HANDED_BACK,
        f"{reason}: ask the next turn elsewhere all the same, it is computed there",
    )


def _goes_on_here(request: Request) -> bool:
    """Whether what is handed over is decoded from: its answer is more than the first token, or
    others begin there."""
    return request.sampling.max_new_tokens > 1 or bool(request.forks)


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

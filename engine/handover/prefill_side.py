"""The sending half of a hand-over, in a prefill engine: transfers, their layer chunks, their first
token.

Owns transfers. A transfer's allocation is released only by PrefillEnd, posted by its daemon after
the sender has drained. So no layer chunk ever reads a page reused by another request. Thread rule:
the engine loop's.
"""

import time
from collections.abc import Collection, Hashable, Sequence

from tasuki.engine import messages as m
from tasuki.engine.accounting import transfer_name
from tasuki.engine.handover.brought_states import AwaitedMedia, PullReceiver, is_unseen
from tasuki.engine.handover.held_states import HeldSender
from tasuki.engine.handover.leaving import LeftStates, SoleReceivers
from tasuki.engine.request import (
    Aborted,
    Active,
    AwaitingGrant,
    AwaitingMedia,
    Finished,
    HandingOver,
    Loading,
    Prefilling,
    Pulling,
    Request,
    Waiting,
)
from tasuki.engine.roles.base import Handover, HandoverContext, RequestInbox, misdirected
from tasuki.engine.routing import PrefillLoad, PrefillSpeed, report, usable_here
from tasuki.engine.scheduling.admission import MOST_ACCEPTED, MOST_PULLED, AcceptWindow
from tasuki.engine.scheduling.checkpoints import keep_completed
from tasuki.engine.scheduling.scheduled_forward import ScheduledSequence
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation, Match
from tasuki.pycache.keys import first_keys
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.packed import pack_events
from tasuki.transfer.chunks.chunk import FinishedLayers
from tasuki.transfer.sending.sender import Sender


class PrefillHandover(Handover):
    retries = False
    """False: a transfer cannot wait for a retry, as its receiver then computes the prompt."""
    draws_behind = False
    """False: the forward with the prompt's last token must have its layer chunks planned before it
    runs."""

    def __init__(self, context: HandoverContext, sender: Sender, speed: PrefillSpeed) -> None:
        """sender: a sender of layer chunks from the cache's arena, counting the runner's steps.
        speed: estimator of prefill time, fed with each forward."""
        super().__init__(context)
        self._sender = sender
        self._speed = speed
        self._load = PrefillLoad(speed)
        self._usable: int | None = None
        """Number of the cache watch of usable states; None before the first ReadUsable."""
        self._transfers: dict[m.TransferId, Request] = {}
        self._peers: dict[m.TransferId, str] = {}
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._pulls = PullReceiver(context, AcceptWindow(capacity, MOST_PULLED))
        self._window = AcceptWindow(capacity, MOST_ACCEPTED)
        self._fetched = HeldSender(context, sender)
        self._receivers = SoleReceivers()
        self._left = LeftStates(context, self._receivers)
        self._media = AwaitedMedia(context)
        self._order: tuple[m.TransferId, ...] = ()
        """Order of the queued transfers in the last PrefillQueue message."""
        self._ending: list[m.PrefillEnd] = []
        """PrefillEnd messages waiting for their request's last forward to complete."""

    @property
    def requests(self) -> Collection[Request]:
        return self._transfers.values()

    @property
    def admission_terms(self) -> Hashable:
        return self._window.left, self._pulls.window.left

    @property
    def waits(self) -> bool:
        return self._pulls.grants.waiting or self._fetched.sources.waiting or bool(self._ending)

    def handle(self, message: RequestInbox) -> None:
        match message:
            case m.PrefillReserve():
                self._reserve(message)
            case m.FetchReserve():
                self._reserve_fetch(message)
            case m.PrefillStart():
                self._start(message)
            case m.PrefillEnd():
                self._end(message)
            case m.PullCommitted() | m.PullLost():
                request = self._pulls.over(message)
                if isinstance(message, m.PullCommitted) and request is not None:
                    self._note_pulled(request)
                if request is not None:
                    self._scheduler.requeue(request)
                if isinstance(message, m.PullCommitted):
                    self._show_what_was_left(request)
            case m.PullFenced():
                self._pulls.fenced(message)
            case m.PicturesCame():
                self._pictures_came(message)
            case m.ReadUsable():
                self._read_usable()
            case m.LeaveToDrainTargets(query_id):
                self._left.begin(query_id, len(self._transfers))
            case m.EndLeaving():
                self._left.end()
            case m.LeftWanted():
                self._left.give(message, len(self._transfers))
            case m.LeftTakenOver():
                self._left.taken_over(message, len(self._transfers))
            case _:
                raise misdirected(message)

    def _reserve(self, message: m.PrefillReserve) -> None:
        transfer_request = message.transfer_request
        transfer_id = transfer_request.transfer_id
        handed = self._intake.handed(message)
        if isinstance(handed, m.RequestError):
            self._emit(m.PrefillRefused(transfer_id, handed))
            return
        tokens, pictures = handed
        error = self._intake.refusal(tokens, len(tokens)) or self._intake.sampling_refusal(
            transfer_request.sampling
        )
        if transfer_id in self._transfers or transfer_id in self._fetched.held:
            error = m.RequestError(m.ErrorKind.INVALID, f"transfer {transfer_id} is in use")
        if error is not None:
            self._emit(m.PrefillRefused(transfer_id, error))
            return
        request = Request(
            transfer_name(transfer_id),
            tokens,
            transfer_request.sampling,
            transfer_request.salt,
            marks=transfer_request.marks,
            message_end=transfer_request.message_end,
            transfer_request=transfer_request,
            # Each decode node has lines of its own, so a full one delays no other node's transfers.
            caller=f"{message.peer}/{transfer_request.caller}",
            priority=transfer_request.priority,
            targets=m.Targets(first_token=transfer_request.due_seconds),
            pictures=pictures,
        )
        if pictures is not None:
            self._media.enter(transfer_id, message.pictures)
        self._transfers[transfer_id], self._peers[transfer_id] = request, message.peer
        self._scheduler.enqueue(request)
        self._enter_load(transfer_id, request, message.peer)

    def _reserve_fetch(self, message: m.FetchReserve) -> None:
        transfer_id = message.transfer_request.transfer_id
        if transfer_id in self._transfers or transfer_id in self._fetched.held:
            self._emit(m.FetchRefused(transfer_id, m.FetchRefusal.BUSY))
        else:
            self._fetched.reserve(message)

    def _pictures_came(self, message: m.PicturesCame) -> None:
        request = self._transfers.get(message.transfer_id)
        if request is not None:
            self._media.came(request, message)

    def _enter_load(self, transfer_id: m.TransferId, request: Request, peer: str) -> None:
        wait = self._load.wait
        if wait > 0:
            self._emit(m.PrefillQueued(transfer_id, wait))
        match = self._cache.match(request.keys, request.salt, request.cursor)
        usable = usable_here(match)
        encodes = self._encodes(request, usable)
        self._load.enter(transfer_id, usable, len(request.prompt), peer, encodes)

    def _show_what_was_left(self, request: Request | None) -> None:
        """Emit the usable states immediately, after the pull for a transfer of one token. Its
        session moves to another decode node, and the new node chooses a prefill node soon."""
        if self._usable is None or request is None or request.sampling.max_new_tokens != 1:
            return
        self._read_usable()

    def _read_usable(self) -> None:
        if self._usable is None:
            self._usable = self._cache.watch("usable")
        self._emit(m.UsableRead(pack_events(self._cache.drain_events(self._usable))))

    def advance(self) -> None:
        self._pulls.grants.advance()
        self._fetched.sources.advance()
        ending, self._ending = self._ending, []
        for message in ending:
            self._end(message)
        self._left.end_if_over(len(self._transfers))
        if (load := self._load.report(time.monotonic(), self._router.pull_seconds)) is not None:
            self._emit(load)

    def admit(self, request: Request) -> bool:
        """Pull the tokens offered by the receiver if the pull is faster than computing them.
        Otherwise allocate memory, and wait for the destination. Return False to keep it queued."""
        transfer_id, tokens = _asked(request).transfer_id, len(request.prompt)
        peer = self._peers[transfer_id]
        # Try this also while the request would wait for a place in the window: the wait hides the
        # pull.
        if self._pull_pays(request, peer) and self._pulls.begin(request, peer):
            self._router.costs.judged()
            return True
        if request.pictures is not None:
            match = self._cache.match(request.keys, request.salt, request.cursor)
            if (found := self._before_pictures(request, usable_here(match))) is not None:
                return found
        if not self._window.has_room(peer, tokens):
            return False
        allocation = self._allocate(request, request.length)
        if allocation is None:
            return False
        if allocation.load is None:
            # It may cover less than was usable.
            found = self._before_pictures(request, allocation.cached_tokens)
            if found is not None:
                self._cache.release(allocation)
                return found
        if request.route is not None and not request.pull_tried:
            self._router.costs.judged()
        self._window.enter(peer, transfer_id, tokens)
        if allocation.load is not None:
            self._begin_load(request, allocation)
        else:
            self._accept(request, allocation)
        return True

    def _before_pictures(self, request: Request, start: int) -> bool | None:
        """Ask for the pictures with rows to be computed from token `start` on, or reject a state
        whose pictures are unknown. Return admit()'s answer then, or None to go on."""
        if is_unseen(request) and start < len(request.prompt) - 1:
            reason = "a state with pictures was not pulled, and its pictures are unknown here"
            self.reject(request, m.RequestError(m.ErrorKind.INVALID, reason))
            return False
        asked = self._media.ask(request, _asked(request).transfer_id, start)
        return True if asked else None

    def _accept(self, request: Request, allocation: Allocation) -> None:
        request.move(AwaitingGrant(allocation))
        self._emit(m.PrefillAccepted(_asked(request).transfer_id))

    def _loaded(self, request: Request, allocation: Allocation) -> None:
        """Accept the transfer after its load from a lower tier. An earlier acceptance would bring
        the destination, and layer chunks would read pages not loaded yet."""
        if not self._lacks_pictures(request, allocation):
            self._accept(request, allocation)
            return
        self._cache.release(allocation)
        self._leave_window(_asked(request).transfer_id)
        request.move(Waiting())
        self._scheduler.requeue(request)

    def _lacks_pictures(self, request: Request, allocation: Allocation) -> bool:
        """Return True if a picture behind the cached tokens is unknown, or its file is missing."""
        if request.pictures is None or self._scheduler.pictures is None:
            return False
        cached = allocation.cached_tokens
        return is_unseen(request) or bool(self._scheduler.pictures.missing(request, cached))

    def _not_loaded(self, request: Request) -> None:
        self._leave_window(_asked(request).transfer_id)

    def _pull_pays(self, request: Request, peer: str) -> bool:
        """Return True if a pull may begin and is expected to be faster than computing."""
        offered = _asked(request).offered
        if request.pull_tried or not offered or not self._pulls.window.has_room(peer, offered):
            return False
        match = self._cache.match(request.keys, request.salt, request.cursor)
        if request.load_failed is None and _loadable(match) >= offered:
            return False
        behind = self._encodes(request, match.usable_tokens) - self._encodes(request, offered)
        decision = self._router.pull(match, offered, self._seconds_ahead(), behind)
        request.route = report(decision)
        return decision.choice is m.Choice.PULLED

    def _seconds_ahead(self) -> float:
        """Return the seconds of prefill left in prompts already admitted."""
        begun = AwaitingGrant | Prefilling
        return sum(
            self._load.left(transfer_id)
            for transfer_id, request in self._transfers.items()
            if isinstance(request.state, begun)
        )

    def planned(self, prompts: Sequence[ScheduledSequence], first_tick: int) -> None:
        for item in prompts:
            transfer_id = _asked(item.request).transfer_id
            self._leave_window(transfer_id)
            self._load.computes(transfer_id, item.stop, len(item.request.prompt))
        self._emit_queue()
        self._plan_chunks(prompts, first_tick)

    def completed(self, prompts: Sequence[ScheduledSequence], seconds: float) -> None:
        self._speed.add(((item.start, item.stop) for item in prompts), seconds)

    def _leave_window(self, transfer_id: m.TransferId) -> None:
        self._window.leave(self._peers[transfer_id], transfer_id)

    def _emit_queue(self) -> None:
        """Emit the order of queued transfers if it changed. This progress report keeps queued
        transfers from timing out."""
        waiting = self._scheduler.waiting
        order = tuple(_asked(request).transfer_id for request in waiting)
        if order and order != self._order:
            self._emit(m.PrefillQueue(order))
        self._order = order

    def _start(self, message: m.PrefillStart) -> None:
        """Start the request of a transfer, or the sending of a fetched state, because the receiver
        granted a destination. Ignore a transfer not awaiting one."""
        if message.grant.transfer_id in self._fetched.held:
            self._fetched.start(message.grant)
        request = self._transfers.get(message.grant.transfer_id)
        if request is None or not isinstance(request.state, AwaitingGrant):
            return
        state = self._begin_prefill(request, request.state.allocation)
        state.grant = message.grant
        state.pages_sent = message.grant.first_page
        request.move(state)
        self._scheduler.start(request)

    def _plan_chunks(self, prompts: Sequence[ScheduledSequence], first_tick: int) -> None:
        """Plan the layer chunks of the coming forward: the pages it completes, layer by layer. At
        the prompt's end, add the state and the partial page."""
        ending = sum(item.num_sampled > 0 for item in prompts)
        for item in prompts:
            state = item.active
            if not isinstance(state, Prefilling) or state.grant is None:
                continue
            last = item.num_sampled > 0
            ready = -(-item.stop // PAGE_TOKENS) if last else item.stop // PAGE_TOKENS
            first = state.pages_sent
            state.pages_sent = max(first, ready)
            self._sender.plan_forward(
                state.grant.transfer_id,
                FinishedLayers(
                    first_tick=first_tick,
                    first_logical_page=first,
                    local_pages=tuple(state.allocation.pages[first : state.pages_sent].tolist()),
                    state_slot=item.write_slot if last else None,
                    ending=ending,
                ),
            )

    def on_token(self, request: Request, sampled: Sampled) -> None:
        """Emit the first token, because the prompt is computed. The request's allocation stays
        until PrefillEnd."""
        self._scheduler.drop(request)
        state = request.state
        assert isinstance(state, Prefilling) and request.hit is not None
        request.move(HandingOver(state.allocation))
        self._load.leave(_asked(request).transfer_id)
        self._learn_prefill_cost(request)
        self._note_receiver(request, _end_of_prompt(request))
        token = sampled.token, sampled.logprob, sampled.margin
        about = request.hit, request.pulled, request.route
        self._emit(m.PrefillToken(_asked(request).transfer_id, *token, *about, sampled.top))

    def _note_pulled(self, request: Request) -> None:
        if _asked(request).offered != _end_of_prompt(request):
            self._note_receiver(request, _asked(request).offered)

    def _note_receiver(self, request: Request, tokens: int) -> None:
        """Record the transfer's decode node as a receiver of the state after the prompt's first
        `tokens` tokens, if the answer continues there."""
        if tokens and request.sampling.max_new_tokens != 1:
            peer = self._peers[_asked(request).transfer_id]
            self._receivers.note(request.salt, first_keys(request.keys, tokens), peer)

    def reject(self, request: Request, error: m.RequestError) -> None:
        """Refuse a transfer unable to continue. Its allocation stays until PrefillEnd, because
        layer chunks may be in flight."""
        self._scheduler.drop(request)
        request.suspect = True
        self._load.leave(_asked(request).transfer_id)
        self._emit(m.PrefillRefused(_asked(request).transfer_id, error))

    def _end(self, message: m.PrefillEnd) -> None:
        """End a transfer after its sender has drained. Wait for a forward in flight first, because
        the computed part of the prompt stays cached."""
        if message.transfer_id in self._fetched.held:
            self._fetched.end(message.transfer_id)
        request = self._transfers.get(message.transfer_id)
        if request is None:
            return
        self._scheduler.drop(request)
        match request.state:
            case Active(progress=progress) if not (progress.settled or request.suspect):
                self._ending.append(message)
                return
            case HandingOver(allocation):
                self._cache.release(allocation)
                request.move(Finished())
            case Active(allocation=allocation) as state:
                if not (request.suspect or is_unseen(request)):
                    keep_completed(self._cache, request, state)
                self._cache.release(allocation)
                request.move(Aborted())
            case AwaitingGrant(allocation):
                self._cache.release(allocation)
                request.move(Aborted())
            case Loading() as state:
                self._give_up_load(state)
                request.move(Aborted())
            case Waiting() | Pulling() | AwaitingMedia():
                request.move(Aborted())
        self._leave_window(message.transfer_id)
        self._media.leave(message.transfer_id)
        self._load.leave(message.transfer_id)
        del self._transfers[message.transfer_id], self._peers[message.transfer_id]
        self.lookups.ended(request.hit)
        self._emit(
            m.TransferEnded(
                message.transfer_id,
                len(request.prompt),
                request.hit,
                isinstance(request.state, Finished),
                tuple(request.life),
                message.given_up,
            )
        )


def _asked(request: Request) -> m.TransferRequest:
    assert request.transfer_request is not None, "a request without a transfer"
    return request.transfer_request


def _end_of_prompt(request: Request) -> int:
    """Return the number of tokens covered by the state kept after a prefill. It ends at the last
    page boundary usable by a repetition of the prompt."""
    return (len(request.prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS


def _loadable(match: Match) -> int:
    """Return the number of first tokens made usable by a load from below the arena; 0 if nothing
    can be loaded."""
    return max((stored.boundary for stored in match.stored), default=0)

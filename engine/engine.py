"""The engine: `step()` = schedule -> launch -> land the one before. A request's life in a line.

Thread rule: one thread calls handle(), step() and take_outbox(); everything it owns (cache,
requests) is its own. Messages in and out are plain values (messages.py).
One forward is in flight while the next is planned, so a stop is noticed one forward late; the two
working slots keep the state that stop is published with.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import count

from tasuki.engine.accounting.evictions import EvictionLedger
from tasuki.engine.accounting.stats import stats_reply, tree_reply
from tasuki.engine.accounting.step_timing import StepTimes
from tasuki.engine.handover.decode_side import TakeOver
from tasuki.engine.handover.early_start import EarlyStart
from tasuki.engine.handover.prefill_side import HandOn
from tasuki.engine.handover.pull_receiver import Pulls
from tasuki.engine.handover.pull_sender import Offers
from tasuki.engine.routing.cost_learner import RateMeter
from tasuki.engine.runner.base import Runner
from tasuki.engine.scheduling.queue_limit import QueueLimit
from tasuki.engine.scheduling.scheduled_sequence import ScheduledSequence
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.scheduling.turn_end import keep_state, turn_hint
from tasuki.model.ops.sampling.reference import Sampled, stop_ids
from tasuki.pycache._cpp_cache import ImpossibleRequest, IntegrityError
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.unit_sizes import UnitSizes

from . import messages as m
from .admission import Admission
from .config import EngineConfig
from .plan_stream import LaunchedForward, PlanStream
from .request import (
    Aborted,
    Active,
    AwaitingPrefill,
    Decoding,
    Finished,
    Prefilling,
    Receiving,
    Request,
)
from .role import Role

log = logging.getLogger(__name__)

# Checking walks the tree, about 12 us a node: who asks often must not stop the loop for it.
_NODES_CHECKED_AT_ONCE = 256


class Engine:
    """Owns every request between its Submit and its Finished or Rejected.

    max_position and vocab_size bound what a prompt may be; eos_ids end an answer unless it ignores
    them.
    """

    def __init__(
        self,
        config: EngineConfig,
        role: Role,
        cache: HybridPrefixCache,
        runner: Runner,
        *,
        max_position: int,
        vocab_size: int,
        eos_ids: Sequence[int],
        tool_call_ids: frozenset[int] = frozenset(),
        sender: Sender | None = None,
        early: EarlyStart | None = None,
        wire: UnitSizes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: of the time that requests wait in the queue."""
        self._role = role
        self._cache = cache
        self._plans = plans = PlanStream(runner, cache)
        self._early = early
        self._max_position = max_position
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._tool_call_ids = tool_call_ids
        self._outbox: list[m.Outbox] = []
        self._requests: dict[m.RequestId, Request] = {}
        self._draining = False
        self._drains: list[int] = []
        self._flight: LaunchedForward | None = None
        self._follows = False
        self._integrity = "ok"
        self._times = StepTimes()
        self._ledger = EvictionLedger(cache, self._lessees)
        emit = self._outbox.append
        self._meter = RateMeter()
        self._take_over = TakeOver(cache, plans, self._ledger, emit, count(1), self._meter, early)
        self._pulls = Pulls(cache, plans, emit, count(1), self._meter)
        self._offers = Offers(cache, plans, emit)
        self._admission = Admission(
            cache, config, role, self._take_over, self._pulls, self._ledger, self._meter, emit, wire
        )
        self._queue = QueueLimit(config.queue_timeout, clock)
        self._scheduler = Scheduler(cache, config, self._admit, self._queue)
        self._hand_on = None if sender is None else HandOn(cache, sender, emit, self._meter)

    def prepare(self) -> None:
        """Once, on the thread that will step, before it does; may take seconds on a GPU."""
        self._plans.prepare()

    def step(self) -> bool:
        """Launch a forward and land the one before; False when there was neither."""
        began = time.perf_counter()
        self._end_overdue()
        self._take_over.grant_waiting()
        self._offers.tell_sources()
        self._pulls.tell_grants()
        work = self._scheduler.schedule()
        self._ledger.collect()
        if self._hand_on is not None:
            self._hand_on.tell_positions(self._scheduler.waiting)
            self._hand_on.plan_windows(work, self._plans.ticks)
        before, self._flight = self._flight, None
        follows, self._follows = self._follows, before is not None
        try:
            if work:
                self._flight = self._plans.launch(work)
        except Exception as error:
            self._land(before, follows)
            self._fail(work, error)
        else:
            self._land(before, follows)
        self._tell_evictions()
        if work:
            self._times.steps.add(time.perf_counter() - began)
        self._answer_drains()
        waits = self._take_over.granting or self._offers.waiting or self._pulls.granting
        return bool(work) or before is not None or waits

    @property
    def idle_seconds(self) -> float | None:
        """How long step() has nothing to do after it returned False, if no message comes; None: for
        ever."""
        return self._queue.idle_seconds

    def _end_overdue(self) -> None:
        for request in self._queue.overdue(self._scheduler.waiting):
            reason = (
                f"its prompt was not begun within {self._queue.seconds:g} s (--queue-timeout): "
                "ask again later, or at another node"
            )
            self._reject(request, m.RequestError(m.ErrorKind.QUEUE_TIMEOUT, reason))

    def _land(self, flight: LaunchedForward | None, follows: bool) -> None:
        """follows: it was launched before the one before had landed."""
        if flight is None:
            return
        try:
            sampled = flight.result()
        except Exception as error:
            self._fail(flight.scheduled, error)
        else:
            if follows:
                self._times.idle.add(flight.idle_seconds)
            self._commit(flight.scheduled, sampled)

    def _fail(self, work: Sequence[ScheduledSequence], error: Exception) -> None:
        """One request ends with the error; of several nobody knows whose it was, so each is tried
        alone. Rooms cannot wait: their receivers prefill themselves."""
        live = [item for item in work if item.live]
        if len(live) > 1 and self._hand_on is None:
            log.error("a forward failed; each of its requests is tried alone", exc_info=error)
            self._scheduler.set_apart(live)
            return
        log.error("a forward failed; its requests end with an error", exc_info=error)
        failure = m.RequestError(m.ErrorKind.INTERNAL, f"the forward failed: {error}")
        for item in live:
            self._reject(item.request, failure)

    def _tell_evictions(self) -> None:
        evictions = self._ledger.take_untold()
        if evictions:
            self._outbox.append(m.Evicted(evictions))

    def _lessees(self) -> dict[int, m.RequestId]:
        """Who holds which lease."""
        held = {}
        for request in self._everyone():
            lease = getattr(request.state, "lease", None)
            if lease is not None:
                held[lease.id] = request.id
        return held

    def _everyone(self) -> list[Request]:
        rooms = [] if self._hand_on is None else self._hand_on.requests
        return [*self._requests.values(), *rooms]

    def take_outbox(self) -> list[m.Outbox]:
        """Everything said since the last call, in order."""
        taken = list(self._outbox)
        self._outbox.clear()
        return taken

    def _commit(
        self, work: Sequence[ScheduledSequence], results: Sequence[Sequence[Sampled]]
    ) -> None:
        for item, sampled in zip(work, results, strict=True):
            if not item.live:
                continue
            item.request.suspect = False
            if any(self._ends_unsound(item.request, token) for token in sampled):
                continue
            lease, progress = item.active.lease, item.active.progress
            progress.land(item.stop, item.write_index, item.num_sampled)
            for planned, slot in item.checkpoints:
                self._cache.publish(lease, planned.position, slot, planned.kind)
            if not sampled:
                continue
            if self._hand_on is not None:
                self._scheduler.drop(item.request)
                self._hand_on.first_token(item.request, sampled[0])
                continue
            if isinstance(item.request.state, Prefilling):
                item.request.move(Decoding(lease, progress))
            for token in sampled:
                # Of what was drawn behind the answer's end nothing counts.
                if item.live:
                    self._on_token(item.request, token)

    def _ends_unsound(self, request: Request, sampled: Sampled) -> bool:
        """Whether the token was drawn from logits that are no numbers. Then the request ends, and
        nothing of it is kept: its state and KV are none either."""
        if math.isfinite(sampled.logprob):
            return False
        log.error("request %s ends: its logits were NaN or infinite", request.id)
        failure = m.RequestError(
            m.ErrorKind.INTERNAL,
            f"the model's logits were NaN or infinite after {request.length} tokens: check the "
            "checkpoint and its dtype, or flush the cache if only this prompt does it",
        )
        self._reject(request, failure)
        return True

    def _on_token(self, request: Request, sampled: Sampled) -> None:
        """Record and emit one token; end the request where it was the last."""
        request.output.append(sampled.token)
        if request.first_token_at is None:
            request.first_token_at = time.monotonic()
            if request.started is not None:
                at, cached = request.started
                self._meter.here.add(len(request.prompt) - cached, request.first_token_at - at)
        index = len(request.output) - 1
        self._outbox.append(
            m.TokenOut(request.id, sampled.token, sampled.logprob, sampled.margin, index)
        )
        if isinstance(request.state, Decoding):
            self._finish_if_over(request)

    def _decode(self, request: Request, second: Sampled | None) -> None:
        """Go on with a request that a hand-over brought; `second`: drawn by its early step."""
        self._scheduler.start(request)
        if second is None:
            self._finish_if_over(request)
        elif not self._ends_unsound(request, second):
            self._on_token(request, second)

    def _finish_reason(self, request: Request) -> m.FinishReason | None:
        """Why the last token of the output is the answer's last; None where it is not."""
        if request.output[-1] in stop_ids(request.sampling, self._eos_ids):
            return m.FinishReason.STOP
        if len(request.output) >= request.sampling.max_new_tokens:
            return m.FinishReason.LENGTH
        return None

    def _finish_if_over(self, request: Request) -> None:
        state = request.state
        assert isinstance(state, Decoding)
        reason = self._finish_reason(request)
        if reason is None:
            return
        hint = turn_hint(request.output, reason, self._tool_call_ids)
        keep_state(self._cache, request, state, hint)
        self._cache.release(state.lease)
        request.move(Finished())
        self._end(request, reason, hint)

    def _end(self, request: Request, reason: m.FinishReason, hint: str = "unknown") -> None:
        self._scheduler.drop(request)
        del self._requests[request.id]
        self._outbox.append(
            m.Finished(request.id, reason, self._usage(request), tuple(request.life), hint)
        )

    def _usage(self, request: Request) -> m.Usage:
        now = time.monotonic()
        first = request.first_token_at
        return m.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=len(request.output),
            hit=request.hit,
            transfer=request.transfer,
            prefilled_on=request.prefilled_on,
            local_fallback=request.handover_lost,
            time_to_first_token=(now if first is None else first) - request.created,
            seconds=now - request.created,
            pulled=request.pulled,
            route=request.route,
        )

    def _admit(self, request: Request) -> bool:
        try:
            return self._admission.admit(request)
        except ImpossibleRequest as error:
            self._reject(request, m.RequestError(m.ErrorKind.TOO_LONG, str(error)))
            return False

    def _reject(self, request: Request, error: m.RequestError) -> None:
        """End a request without an answer; a room is only said to be over, its lease stays until
        PrefillEnd."""
        self._scheduler.drop(request)
        if self._hand_on is not None:
            self._hand_on.fail(request, error)
            return
        if isinstance(request.state, Active):
            self._cache.release(request.state.lease)
        request.move(Aborted())
        del self._requests[request.id]
        self._outbox.append(m.Rejected(request.id, error))

    def handle(self, message: m.Inbox) -> None:
        match message:
            case m.Submit():
                self._submit(message)
            case m.Abort(request_id):
                self._abort(request_id)
            case m.OpenCursor(query_id, salt):
                self._outbox.append(m.CursorOpened(query_id, self._cache.open_cursor(salt)))
            case m.ForkCursor(query_id, cursor):
                self._outbox.append(m.CursorOpened(query_id, self._cache.fork_cursor(cursor)))
            case m.CloseCursor(cursor):
                self._cache.close_cursor(cursor)
            case m.StatsQuery(query_id):
                self._outbox.append(self._stats(query_id))
            case m.CountersQuery(query_id):
                self._outbox.append(self._counters(query_id))
            case m.FlushCache(query_id):
                self._outbox.append(m.FlushReply(query_id, self._cache.flush()))
            case m.WatchCache(query_id, stream):
                self._outbox.append(m.WatchOpened(query_id, self._cache.watch(stream)))
            case m.ReadEvents(query_id, watch):
                self._outbox.append(m.EventsReply(query_id, self._cache.drain_events(watch)))
            case m.EndWatch(watch):
                self._cache.unwatch(watch)
            case m.TreeQuery():
                self._outbox.append(tree_reply(self._cache, message))
            case m.Drain(query_id):
                self._draining = True
                self._drains.append(query_id)
            case m.Undrain():
                self._draining = False
                self._outbox.extend(m.Drained(query, at_rest=False) for query in self._drains)
                self._drains.clear()
            case m.PeersChanged(prefill_available):
                self._take_over.prefill_available = prefill_available
            case m.GrantWanted():
                self._take_over.grant_wanted(message)
            case m.RemoteReady(room, token, logprob) if not (
                0 <= token < self._vocab_size and math.isfinite(logprob)
            ):
                # On a GPU the token would end the process, not the request.
                self._outbox.append(m.HandoverCancelled(room))
                reason = f"its first token is {token} with a logprob of {logprob}"
                self.handle(m.HandoverLost(room, reason))
            case m.RemoteReady():
                ready = self._take_over.ready(message)
                if ready is not None:
                    self._on_token(*ready)
                    if self._finish_reason(ready[0]) is None:
                        self._take_over.start_early(ready[0], message)
            case m.RemoteDone():
                done = self._take_over.done(message)
                if done is not None:
                    self._decode(*done)
            case m.EarlyStepEnded():
                for joined in self._take_over.join():
                    self._decode(*joined)
            case m.HandoverLost():
                request = self._take_over.lost(message)
                if request is not None:
                    self._scheduler.requeue(request)
            case m.WriterFenced():
                self._take_over.fenced(message)
            case m.PullAsked(room):
                self._offers.asked(message, self._take_over.awaiting(room))
            case m.PullEnd():
                self._offers.end(message)
            case m.PullCommitted() | m.PullLost():
                request = self._pulls.over(message)
                if request is not None:
                    self._scheduler.requeue(request)
            case m.PullFenced():
                self._pulls.fenced(message)
            case m.PrefillReserve() | m.PrefillStart() | m.PrefillEnd():
                self._handle_room(message)

    def _handle_room(self, message: m.PrefillReserve | m.PrefillStart | m.PrefillEnd) -> None:
        hand_on = self._hand_on
        if hand_on is None:
            raise ValueError(f"{type(message).__name__} reached an engine that hands nothing on")
        match message:
            case m.PrefillReserve(ticket, prompt):
                error = self._refusal(prompt, len(prompt))
                if hand_on.knows(ticket.room):
                    error = m.RequestError(m.ErrorKind.INVALID, f"room {ticket.room} is in use")
                if error is not None:
                    self._outbox.append(m.PrefillRefused(ticket.room, error))
                    return
                self._scheduler.enqueue(hand_on.reserve(message))
            case m.PrefillStart():
                request = hand_on.start(message)
                if request is not None:
                    self._scheduler.start(request)
            case m.PrefillEnd():
                request = hand_on.end(message)
                if request is not None:
                    self._scheduler.drop(request)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and answer together, as far as the model and the arena allow. Any thread."""
        return min(self._max_position, self._cache.capacity_tokens(self._role.working_slots))

    def _refusal(self, prompt: m.Tokens, final_length: int) -> m.RequestError | None:
        """Why a prompt can never be served here, with the number that would fit."""
        if self._draining:
            return m.RequestError(m.ErrorKind.DRAINING, "this node is draining; try another")
        if len(prompt) == 0:
            return m.RequestError(m.ErrorKind.INVALID, "prompt is empty: send at least one token")
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._vocab_size:
            return m.RequestError(
                m.ErrorKind.INVALID, f"prompt holds a token outside [0, {self._vocab_size})"
            )
        limit = self.max_request_tokens
        if final_length > limit:
            return m.RequestError(
                m.ErrorKind.TOO_LONG,
                f"prompt of {len(prompt)} tokens with its answer needs {final_length}, "
                f"but at most {limit} fit: shorten the prompt or lower max_new_tokens",
            )
        return None

    def _submit(self, message: m.Submit) -> None:
        request = Request(
            message.request_id,
            message.prompt,
            message.sampling,
            message.salt,
            message.cursor,
            message.marks,
            told=message.told,
        )
        error = self._refusal(request.prompt, request.final_length)
        if request.told is not None and self._take_over.knows(request.told.room):
            error = m.RequestError(
                m.ErrorKind.INVALID, f"room {request.told.room} is in use: make another"
            )
        if request.id in self._requests:
            error = m.RequestError(
                m.ErrorKind.INVALID, f"request id {request.id!r} is in use: choose another"
            )
        if error is not None:
            self._outbox.append(m.Rejected(message.request_id, error))
            return
        self._requests[request.id] = request
        self._scheduler.enqueue(request)

    def _abort(self, request_id: m.RequestId) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        match request.state:
            case AwaitingPrefill() | Receiving():
                self._take_over.cancel(request)
            case Active(lease=lease):
                self._cache.release(lease)
                request.move(Aborted())
            case _:
                request.move(Aborted())
        self._end(request, m.FinishReason.ABORT)

    def _stats(self, query_id: int) -> m.StatsReply:
        self._integrity = "ok"
        try:
            self._cache.check_integrity()
        except IntegrityError as error:
            self._integrity = str(error)
        return self._told_counters(query_id)

    def _counters(self, query_id: int) -> m.StatsReply:
        if self._cache.stats().nodes <= _NODES_CHECKED_AT_ONCE:
            return self._stats(query_id)
        return self._told_counters(query_id)

    def _told_counters(self, query_id: int) -> m.StatsReply:
        early = {} if self._early is None else self._early.counters
        return stats_reply(
            query_id, self._cache, self._everyone(), self._integrity, self._times.report(), early
        )

    def _answer_drains(self) -> None:
        busy = self._requests or (self._hand_on is not None and self._hand_on.requests)
        if self._drains and not busy:
            self._outbox.extend(m.Drained(query_id) for query_id in self._drains)
            self._drains.clear()

"""Client requests answered by this engine, from Submit to Finished or Rejected.

Owns these requests. Their prompts are computed on this engine, unless a decode engine's hand-over
provides the allocation. Knows the stop tokens of an answer. Rejects requests with tokens sampled
from NaN or infinite logits. Thread rule: the engine loop's.
"""

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasuki.engine import messages as m
from tasuki.engine.accounting import usage_of
from tasuki.engine.forward_plan import Ints
from tasuki.engine.messages import ErrorKind, RequestError, RequestId
from tasuki.engine.pictures.placed import PlacedPictures
from tasuki.engine.request import Aborted, Active, Decoding, Finished, Loading, Prefilling, Request
from tasuki.engine.roles.base import Handover, HandoverContext, RequestInbox, misdirected
from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.scheduling.admission import EarlyRefusal, FirstTokenOutlook
from tasuki.engine.scheduling.checkpoints import keep_completed, keep_state, turn_hint
from tasuki.engine.scheduling.scheduled_forward import AnswerRows, ScheduledSequence
from tasuki.engine.scheduling.shared_prompts import carrier_of, scoring_of, told_of
from tasuki.engine.speculation.speculation import Speculation
from tasuki.model.ops.sampling.prompt_scores import PromptScores
from tasuki.model.ops.sampling.reference import Sampled, stop_ids
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.keys import PromptTokens

_OWN_SALT_BYTES = 16
"""Bytes of a random salt, so no other request shares the cached prefix."""


@dataclass(frozen=True)
class AnswerTerms:
    """The engine's settings for answers. eos_ids: tokens ending an answer, unless its request
    ignores them. tool_call_ids: tokens opening a tool call. targets: the node's time limits for
    requests without their own. speculation: chooses the answers with draft tokens."""

    eos_ids: tuple[int, ...]
    tool_call_ids: frozenset[int]
    targets: m.Targets
    speculation: Speculation


class Answers(Handover):
    """A fused engine's handling of its requests: prompts and answers, without hand-overs."""

    def __init__(self, context: HandoverContext, terms: AnswerTerms) -> None:
        super().__init__(context)
        self._eos_ids = terms.eos_ids
        self._tool_call_ids = terms.tool_call_ids
        self._speculation = terms.speculation
        self._grammars = context.grammars
        self._requests: dict[m.RequestId, Request] = {}
        self._stops = StopTokens()
        self._outlook = FirstTokenOutlook(context.clock)
        self._refusal = EarlyRefusal(terms.targets, self._outlook, context.scheduler.seats)

    @property
    def requests(self) -> Collection[Request]:
        return self._requests.values()

    def handle(self, message: RequestInbox) -> None:
        match message:
            case m.Submit():
                self.submit(message)
            case m.Abort(request_id):
                self.abort(request_id)
            case m.LeaveToDrainTargets() | m.EndLeaving():
                self.leave_nothing(message)
            case _:
                raise misdirected(message)

    def submit(self, message: m.Submit, refusal: m.RequestError | None = None) -> None:
        """Queue the request and all its forks (further answers to its prompt), or reject them all.
        refusal: the caller's error to reject them with, if any."""
        salt, cursor = message.salt, message.cursor
        if message.prompt_logprobs is not None:
            # Cached tokens have no logits. So the whole prompt is computed, apart from all others.
            salt, cursor = salt + secrets.token_bytes(_OWN_SALT_BYTES), None
        pictures = self._intake.placed(message)
        misplaced = pictures if isinstance(pictures, m.RequestError) else None
        if isinstance(pictures, m.RequestError):
            message, pictures = replace(message, pictures=()), None
        asked = [message, *map(message.of_fork, message.forks)]
        targets = self._refusal.targets(message.targets)
        choices = [self._request(one, salt, cursor, targets, pictures) for one in asked]
        first = choices[0]
        error = (
            refusal
            or _not_here(message)
            or self._intake.refusal(first.prompt, first.final_length)
            or misplaced
            or self._intake.sampling_refusal(first.sampling)
            or self._intake.scoring_refusal(first.prompt, message.prompt_logprobs)
            or self._intake.prediction_refusal(message.prediction)
            or self._refusal.reason(first, self.requests, self._elsewhere)
        )
        error = self._name_clash(message) or error
        if error is not None:
            for choice in choices:
                self._emit(m.Rejected(choice.id, error, _named(choice)))
            return
        for choice in choices:
            self._add(choice)
        self._outlook.entered(first)
        if self._shares_prompt(choices):
            choices = [carrier_of(choices, self._requests)]
            self._add(choices[0])
        for choice in choices:
            self._scheduler.enqueue(choice)

    def _request(
        self,
        message: m.Submit,
        salt: bytes,
        cursor: int | None,
        targets: m.Targets,
        pictures: PlacedPictures | None,
    ) -> Request:
        """Return a request with the message's own id. salt, cursor, targets, pictures: used instead
        of the message's."""
        scoring = scoring_of(message)
        return Request(
            message.request_id,
            PromptTokens(message.prompt),
            message.sampling,
            salt,
            cursor,
            message.marks,
            message.message_end,
            gateway_transfer=message.gateway_transfer,
            caller=message.caller,
            priority=message.priority,
            patience=message.patience,
            targets=targets,
            changed=message.changed,
            scoring=scoring,
            findable=scoring is None,
            purpose=message.purpose,
            drafting=self._speculation.drafting(message),
            pictures=pictures,
        )

    def take_aside(
        self,
        message: m.Submit,
        refusal: m.RequestError | None,
        pictures: PlacedPictures | None = None,
    ) -> Request | None:
        """Own a request without queueing it, even while the node drains. Return None if it is
        rejected. refusal: the caller's error to reject it with, if any. pictures: of the prompt or
        of a longer one. REQUIRES: it has no forks."""
        request = self._request(message, message.salt, message.cursor, m.NO_TARGETS, pictures)
        error = refusal or self._intake.misfit(request.prompt, request.final_length)
        error = self._name_clash(message) or error
        if error is not None:
            self._emit(m.Rejected(request.id, error))
            return None
        self._add(request)
        return request

    def _name_clash(self, message: m.Submit) -> m.RequestError | None:
        taken = next((name for name in message.answer_ids if name in self._requests), None)
        if taken is None:
            return None
        return m.RequestError(
            m.ErrorKind.INVALID, f"request id {taken!r} is in use: choose another"
        )

    def _add(self, request: Request) -> None:
        self._requests[request.id] = request
        self._stops.add(request.id, stop_ids(request.sampling, self._eos_ids))

    def _shares_prompt(self, choices: Sequence[Request]) -> bool:
        """Return True if these answers' common prompt should be computed once, before them."""
        first = choices[0]
        if len(choices) == 1 or len(first.prompt) == 1:
            return False
        match = self._cache.match(first.keys, first.salt, first.cursor)
        return match.usable_tokens < len(first.prompt) - 1

    def _elsewhere(self, request: Request) -> float:
        """Return the seconds of other nodes' work queued before a new request, as in
        FirstTokenOutlook.seconds(): 0, because this engine computes its prompts itself."""
        return 0.0

    def abort(self, request_id: m.RequestId) -> None:
        """Abort the request if it exists. Abort its carrier (the request computing the common
        prompt) too, if no other fork waits for it."""
        request = self._requests.get(request_id)
        if request is None:
            return
        self.abort_request(request)
        carrier = None if request.carrier is None else self._requests.get(request.carrier)
        # Once the carrier has ended, its id may belong to another request.
        if carrier is not None and request in carrier.forks and not carrier.waiting_forks:
            self.abort_request(carrier)

    def abort_request(self, request: Request) -> None:
        if isinstance(request.state, Active):
            if request.findable:
                keep_completed(self._cache, request, request.state)
            self._cache.release(request.state.allocation)
        elif isinstance(request.state, Loading):
            self._give_up_load(request.state)
        request.move(Aborted())
        self.end(request, m.FinishReason.ABORT)

    def advance(self) -> None:
        """Do nothing: this role grants no destinations."""

    def planned(self, prompts: Sequence[ScheduledSequence], first_tick: int) -> None:
        """Do nothing: this role sends no layer chunks of the forward."""

    def completed(self, prompts: Sequence[ScheduledSequence], seconds: float) -> None:
        """Do nothing: this role learns nothing from a forward's duration."""

    def admit(self, request: Request) -> bool:
        allocation = self._allocate(request, request.next_capacity)
        if allocation is None:
            return False
        if allocation.load is not None:
            self._begin_load(request, allocation)
        else:
            request.move(self._begin_prefill(request, allocation))
        return True

    def _loaded(self, request: Request, allocation: Allocation) -> None:
        sampled = None if request.ahead is None else request.ahead.sampled
        state = self._begin_prefill(request, allocation)
        request.move(state)
        if sampled is not None:
            request.move(Decoding(allocation, state.progress))
        self._scheduler.start(request)
        if sampled is not None:
            self._go_on_with(request, sampled)

    def _go_on_with(self, request: Request, sampled: Sampled) -> None:
        """Continue the request with a token sampled outside of the batch. Reject it if the logits
        were not finite."""
        if all_sound([sampled]):
            self.on_token(request, sampled)
        else:
            self.reject(request, unsound(request))

    def take_over(self, request: Request, second: Sampled | None) -> None:
        """Decode a request with a prompt received by a hand-over; end it if its answer is over.
        second: the answer's second token, sampled by an early decode step; None without one."""
        self._scheduler.start(request)
        if second is None:
            self._finish_if_over(request)
        else:
            self._go_on_with(request, second)

    def on_tokens(self, answers: AnswerRows, sampled: SampledTokens) -> None:
        """Record one sampled token for each answer and emit them together. End the requests with
        their last token."""
        requests = answers.requests
        for request, token in zip(requests, sampled.tokens.tolist(), strict=True):
            request.output.append(token)
        ids = tuple([request.id for request in requests])
        columns = sampled.tokens, sampled.logprobs, sampled.margins
        self._emit(m.TokensOut(ids, *columns, answers.indices, sampled.tops))
        over = answers.is_last | self._stops.may_end(sampled.tokens)
        for request in answers.requests_where(over):
            self._finish_if_over(request)

    def on_token(self, request: Request, sampled: Sampled) -> None:
        """Record and emit the sampled token. If it is the last, end a Decoding request."""
        state = request.state
        if isinstance(state, Prefilling):
            request.move(Decoding(state.allocation, state.progress))
        request.output.append(sampled.token)
        if request.first_token_at is None:
            request.first_token_at = time.monotonic()
            self._outlook.left(request, answered=True)
            self._learn_prefill_cost(request)
        token, index = (sampled.token, sampled.logprob, sampled.margin), len(request.output) - 1
        self._emit(m.TokenOut(request.id, *token, index, sampled.top))
        if isinstance(request.state, Decoding):
            self._finish_if_over(request)

    def until_end(self, request: Request, tokens: Sequence[Sampled]) -> int:
        """Return the number of these consecutive tokens in the request's answer. It ends with the
        first end token, or at its length."""
        within = tokens[: request.tokens_left]
        ends = (i for i, token in enumerate(within, 1) if self._stops.ends(request.id, token.token))
        return next(ends, len(within))

    def on_scores(self, request: Request, row: int, scores: PromptScores) -> None:
        """Emit the scores of prompt tokens after position `row`. Scores emitted before a preemption
        of the request are not emitted again."""
        new = scores.behind(max(0, request.scored - row))
        if not len(new):
            return
        first = request.scored + 1
        request.scored += len(new)
        self._emit(
            m.PromptScored(
                request.told_as, first, new.logprobs, new.ranks, new.top_tokens, new.top_logprobs
            )
        )

    def on_prompt_end(self, request: Request) -> None:
        state = request.state
        assert isinstance(state, Active)
        self._learn_prefill_cost(request)
        self._keep(request, state)
        self._cache.release(state.allocation)
        request.move(Finished())
        self.end(request, m.FinishReason.LENGTH)

    def finish_reason(self, request: Request) -> m.FinishReason | None:
        """Return the reason for ending, if the output's last token ends the answer; else None."""
        if self._stops.ends(request.id, request.output[-1]):
            return m.FinishReason.LENGTH if self._was_cut(request) else m.FinishReason.STOP
        if len(request.output) >= request.sampling.max_new_tokens:
            return m.FinishReason.LENGTH
        return None

    def _was_cut(self, request: Request) -> bool:
        """Return True if the end token was forced at a dead end of the request's grammar, not at
        the end of a valid text. This happens when the grammar's work for a step exceeded its bound
        (model/grammar/constraint.py)."""
        grammar, last = request.sampling.grammar, request.output[-1]
        if grammar is None or last not in self._eos_ids:
            return False
        return self._grammars.constraint(grammar, request.output).failed

    def finish_elsewhere(self, request: Request, reason: m.FinishReason) -> None:
        """Finish a request answered by the first token from another node. REQUIRES: the request
        holds no memory of this node any more."""
        hint = turn_hint(request.output, reason, self._tool_call_ids)
        request.move(Finished())
        self.end(request, reason, hint)

    def _finish_if_over(self, request: Request) -> None:
        state = request.state
        assert isinstance(state, Decoding)
        reason = self.finish_reason(request)
        if reason is None:
            return
        hint = turn_hint(request.output, reason, self._tool_call_ids)
        self._keep(request, state, hint)
        self._cache.release(state.allocation)
        request.move(Finished())
        self.end(request, reason, hint)

    def _keep(self, request: Request, active: Active, hint: str = "unknown") -> None:
        """Keep the request's state for the next turn, if other requests may find it."""
        if request.findable:
            keep_state(self._cache, request, active, hint)
            if self._speculation.remembers:
                cached = 0 if request.hit is None else request.hit.usable_tokens
                self._speculation.ended(request.tokens(), request.salt, cached)

    def end(self, request: Request, reason: m.FinishReason, hint: str = "unknown") -> None:
        """Report the end of a request; for a carrier of forks, only requeue the forks. REQUIRES:
        the request holds no memory any more."""
        self._forget(request)
        if request.forks:
            self._release_forks(request)
            return
        self.lookups.ended(request.hit)
        usage, life = usage_of(request), tuple(request.life)
        self._emit(m.Finished(request.id, reason, usage, life, hint, request.weights))

    def _release_forks(self, carrier: Request) -> None:
        """Requeue the carrier's forks after their common prompt was computed. They go ahead of
        requests not begun yet."""
        for fork in carrier.waiting_forks:
            told_of(fork, carrier)
            self._scheduler.requeue(fork)

    def reject(self, request: Request, error: m.RequestError) -> None:
        self._forget(request)
        if isinstance(request.state, Active):
            self._cache.release(request.state.allocation)
        request.move(Aborted())
        if request.forks:
            for fork in request.waiting_forks:
                self.reject(fork, error)
            return
        self._emit(m.Rejected(request.id, error, _named(request)))

    def _forget(self, request: Request) -> None:
        self._scheduler.drop(request)
        self._outlook.left(request, answered=False)
        del self._requests[request.id]
        self._stops.remove(request.id)


def _named(request: Request) -> m.Targets | None:
    """Return the request's time limits; None if it has none."""
    return None if request.targets == m.NO_TARGETS else request.targets


def _not_here(message: m.Submit) -> m.RequestError | None:
    if message.purpose is m.Purpose.ANSWER:
        return None
    reason = "this node has no prefill nodes to hand anything back to: ask elsewhere, in full"
    return m.RequestError(m.ErrorKind.NOT_HANDED_BACK, reason)


_LARGEST = np.iinfo(np.int32).max


class StopTokens:
    """The stop tokens of all answers: an array for a quick test of many tokens, and a set per
    request for an exact test of one.

    Owns one set per request. Thread rule: the engine loop's. Invariant: may_end() is true whenever
    ends() is true for an added request.
    """

    def __init__(self) -> None:
        self._of: dict[RequestId, frozenset[int]] = {}
        self._count: Counter[frozenset[int]] = Counter()
        self._all: Ints | None = None
        """All stop tokens of all requests, int32; None: to be collected again."""

    def add(self, request_id: RequestId, tokens: frozenset[int]) -> None:
        """Set the stop tokens of a request. REQUIRES: it has none yet."""
        self._of[request_id] = tokens
        self._count[tokens] += 1
        if self._count[tokens] == 1:
            self._all = None

    def remove(self, request_id: RequestId) -> None:
        tokens = self._of.pop(request_id)
        self._count[tokens] -= 1
        if not self._count[tokens]:
            del self._count[tokens]
            self._all = None

    def ends(self, request_id: RequestId, token: int) -> bool:
        return token in self._of[request_id]

    def may_end(self, tokens: Ints) -> NDArray[np.bool_]:
        """Return bool [n]: True if the token is a stop token of any request."""
        if self._all is None:
            named = frozenset[int]().union(*self._count)
            # A client may name ids that are no tokens.
            self._all = np.array([t for t in named if 0 <= t <= _LARGEST], dtype=np.int32)
        return np.isin(tokens, self._all)


log = logging.getLogger(__name__)


def all_sound(tokens: Sequence[Sampled]) -> bool:
    """Return True if all tokens were sampled from finite logits."""
    return all(math.isfinite(token.logprob) for token in tokens)


def unsound(request: Request) -> RequestError:
    """Return the error for a request with NaN or infinite logits. None of the request's state and
    KV may be kept, because they are not finite either."""
    log.error("request %s ends: its logits were NaN or infinite", request.id)
    return RequestError(
        ErrorKind.INTERNAL,
        f"the model's logits were NaN or infinite after {request.length} tokens: check the "
        "checkpoint and its dtype, or flush the cache if only this prompt does it",
    )

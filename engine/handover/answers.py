"""Requests that clients submitted and that are answered here, from Submit to Finished or Rejected.

Owns them; their allocations are computed on this engine, unless a decode engine's hand-over brings
one. Thread rule: the engine loop's."""

import time
from collections.abc import Collection, Sequence

from tasuki.engine import messages as m
from tasuki.engine.accounting.changed_prompts import with_changed
from tasuki.engine.request import Aborted, Active, Decoding, Finished, Prefilling, Request
from tasuki.engine.runner.drawn_tokens import DrawnTokens
from tasuki.engine.scheduling.scheduled_forward import AnswerRows
from tasuki.engine.scheduling.turn_end import keep_landed, keep_state, turn_hint
from tasuki.model.ops.sampling.reference import Sampled, stop_ids

from .base import Handover, HandoverContext, RequestInbox, misdirected
from .stop_tokens import StopTokens
from .unsound import all_sound, unsound


class Answers(Handover):
    """All that a fused engine does with its requests: it hands nothing over."""

    def __init__(
        self,
        context: HandoverContext,
        eos_ids: Sequence[int],
        tool_call_ids: frozenset[int] = frozenset(),
    ) -> None:
        """eos_ids end an answer unless it ignores them; tool_call_ids open a tool call."""
        super().__init__(context)
        self._eos_ids = tuple(eos_ids)
        self._tool_call_ids = tool_call_ids
        self._requests: dict[m.RequestId, Request] = {}
        self._stops = StopTokens()

    @property
    def requests(self) -> Collection[Request]:
        return self._requests.values()

    def get(self, request_id: m.RequestId) -> Request | None:
        return self._requests.get(request_id)

    def handle(self, message: RequestInbox) -> None:
        match message:
            case m.Submit():
                self.submit(message)
            case m.Abort(request_id):
                self._abort(request_id)
            case _:
                raise misdirected(message)

    def submit(self, message: m.Submit, refusal: m.RequestError | None = None) -> None:
        """Queue the request. refusal: why the caller refuses it, if it does."""
        request = Request(
            message.request_id,
            message.prompt,
            message.sampling,
            message.salt,
            message.cursor,
            message.marks,
            gateway_room=message.gateway_room,
            caller=message.caller,
            priority=message.priority,
            patience=message.patience,
            changed=message.changed,
        )
        error = (
            refusal
            or self._intake.refusal(request.prompt, request.final_length)
            or self._intake.sampling_refusal(request.sampling)
        )
        if request.id in self._requests:
            error = m.RequestError(
                m.ErrorKind.INVALID, f"request id {request.id!r} is in use: choose another"
            )
        if error is not None:
            self._emit(m.Rejected(request.id, error))
            return
        self._requests[request.id] = request
        self._stops.add(request.id, stop_ids(request.sampling, self._eos_ids))
        self._scheduler.enqueue(request)

    def _abort(self, request_id: m.RequestId) -> None:
        request = self.get(request_id)
        if request is None:
            return
        if isinstance(request.state, Active):
            keep_landed(self._cache, request, request.state)
            self._cache.release(request.state.allocation)
        request.move(Aborted())
        self.end(request, m.FinishReason.ABORT)

    def admit(self, request: Request) -> bool:
        allocation = self._allocate(request, request.next_capacity)
        if allocation is None:
            return False
        request.move(self._begin_prefill(request, allocation))
        return True

    def take_over(self, request: Request, second: Sampled | None) -> None:
        """Decode a request whose prompt a hand-over brought. second: drawn by its early step."""
        self._scheduler.start(request)
        if second is None:
            self._finish_if_over(request)
        elif not all_sound([second]):
            self.reject(request, unsound(request))
        else:
            self.on_token(request, second)

    def on_tokens(self, answers: AnswerRows, drawn: DrawnTokens) -> None:
        """Record them and emit them together; end the requests of which one was the last."""
        requests = answers.requests
        for request, token in zip(requests, drawn.tokens.tolist(), strict=True):
            request.output.append(token)
        ids = tuple([request.id for request in requests])
        self._emit(
            m.TokensOut(
                ids, drawn.tokens, drawn.logprobs, drawn.margins, answers.indices, drawn.tops
            )
        )
        over = answers.is_last | self._stops.may_end(drawn.tokens)
        for request in answers.requests_where(over):
            self._finish_if_over(request)

    def on_token(self, request: Request, sampled: Sampled) -> None:
        """Record and emit the token; end the request where it was the last."""
        state = request.state
        if isinstance(state, Prefilling):
            request.move(Decoding(state.allocation, state.progress))
        request.output.append(sampled.token)
        if request.first_token_at is None:
            request.first_token_at = time.monotonic()
            self._learn_prefill_cost(request)
        index = len(request.output) - 1
        self._emit(
            m.TokenOut(
                request.id, sampled.token, sampled.logprob, sampled.margin, index, sampled.top
            )
        )
        if isinstance(request.state, Decoding):
            self._finish_if_over(request)

    def finish_reason(self, request: Request) -> m.FinishReason | None:
        """Why the last token of the output is the answer's last; None where it is not."""
        if self._stops.ends(request.id, request.output[-1]):
            return m.FinishReason.STOP
        if len(request.output) >= request.sampling.max_new_tokens:
            return m.FinishReason.LENGTH
        return None

    def finish_elsewhere(self, request: Request, reason: m.FinishReason) -> None:
        """The first token of a prompt that was computed elsewhere is the answer. REQUIRES: the
        request holds nothing here any more."""
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
        keep_state(self._cache, request, state, hint)
        self._cache.release(state.allocation)
        request.move(Finished())
        self.end(request, reason, hint)

    def end(self, request: Request, reason: m.FinishReason, hint: str = "unknown") -> None:
        """REQUIRES: the request holds nothing any more."""
        self._forget(request)
        self._emit(m.Finished(request.id, reason, _usage(request), tuple(request.life), hint))

    def reject(self, request: Request, error: m.RequestError) -> None:
        self._forget(request)
        if isinstance(request.state, Active):
            self._cache.release(request.state.allocation)
        request.move(Aborted())
        self._emit(m.Rejected(request.id, error))

    def _forget(self, request: Request) -> None:
        self._scheduler.drop(request)
        del self._requests[request.id]
        self._stops.remove(request.id)


def _usage(request: Request) -> m.Usage:
    now = time.monotonic()
    first = request.first_token_at
    return m.Usage(
        prompt_tokens=len(request.prompt),
        completion_tokens=len(request.output),
        hit=None if request.hit is None else with_changed(request.hit, request.changed),
        transfer=request.transfer,
        prefilled_on=request.prefilled_on,
        local_fallback=request.handover_lost,
        time_to_first_token=(now if first is None else first) - request.created,
        seconds=now - request.created,
        pulled=request.pulled,
        route=request.route,
    )

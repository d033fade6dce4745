"""Turns what the engine answers to one request into the gateway's GenerateResponse messages.

Owns the answer so far. Has no part in gRPC. One answer, one thread. Invariant: a stop token is sent
only where the request keeps it, and nothing after a stop string; the counts include every token
computed up to the end.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb

from tasuki.engine.messages import Finished, FinishReason, TokenOut
from tasuki.model.ops.sampling.reference import stop_ids
from tasuki.server.text.stop_strings import StopStrings
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart

from .request_reader import GatewayRequest


class GatewayAnswer:
    def __init__(
        self,
        asked: GatewayRequest,
        eos_ids: tuple[int, ...],
        detokenizer: IncrementalDetokenizer,
        abort: Callable[[], None],
    ) -> None:
        """abort: makes the engine end this request; its events go on to their Finished."""
        self._asked = asked
        self._abort = abort
        self._stop_ids = stop_ids(asked.submit.sampling, eos_ids)
        self._detokenizer = detokenizer
        self._stops = StopStrings(asked.stops)
        self._tokens: list[TokenOut] = []
        self._made = 0

    async def messages(
        self, parts: AsyncGenerator[AnswerPart, None]
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Chunks, where the request streams, then one complete. Raises what the parts raise."""
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Finished):
                    yield self._complete(part)
                    return
                if self._stops.found:
                    continue
                shown = [token for token in part if self._shows(token)]
                self._tokens += shown
                if shown and self._asked.streams:
                    yield self._chunk(shown)
                if self._stops.found:
                    self._abort()

    def _shows(self, token: TokenOut) -> bool:
        """Count the next token; whether it is part of what the gateway gets."""
        if self._stops.found:
            return False
        self._made += 1
        if self._asked.stops:
            text = self._detokenizer.push(token.token)
            if self._made > self._asked.submit.sampling.min_tokens:
                self._stops.push(text)
        return token.token not in self._stop_ids or self._asked.keeps_stop_token

    def _chunk(self, tokens: list[TokenOut]) -> pb.GenerateResponse:
        chunk = pb.GenerateStreamChunk(
            token_ids=[token.token for token in tokens],
            prompt_tokens=len(self._asked.submit.prompt),
            completion_tokens=self._made,
        )
        if self._asked.wants_logprobs:
            chunk.output_logprobs.CopyFrom(_logprobs(tokens))
        return pb.GenerateResponse(request_id=self._asked.submit.request_id, chunk=chunk)

    def _complete(self, finished: Finished) -> pb.GenerateResponse:
        hit = finished.usage.hit
        reason = FinishReason.STOP if self._stops.found else finished.reason
        complete = pb.GenerateComplete(
            output_ids=[token.token for token in self._tokens],
            finish_reason=reason.value,
            prompt_tokens=len(self._asked.submit.prompt),
            completion_tokens=self._made,
            cached_tokens=0 if hit is None else hit.usable_tokens,
        )
        if self._asked.wants_logprobs:
            complete.output_logprobs.CopyFrom(_logprobs(self._tokens))
        return pb.GenerateResponse(request_id=self._asked.submit.request_id, complete=complete)


def _logprobs(tokens: list[TokenOut]) -> pb.OutputLogProbs:
    return pb.OutputLogProbs(
        token_logprobs=[token.logprob for token in tokens],
        token_ids=[token.token for token in tokens],
        top_logprobs=[_top(token) for token in tokens] if any(t.top for t in tokens) else None,
    )


def _top(token: TokenOut) -> pb.TopLogProbs:
    return pb.TopLogProbs(
        values=[logprob for _, logprob in token.top], token_ids=[other for other, _ in token.top]
    )

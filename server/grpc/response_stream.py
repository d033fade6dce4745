"""Writes one answer to a client: engine events in, GenerateResponse out.

Knows neither sessions nor prompts. Whatever ends it early (a cancelled call, a failed write, a
deadline) closes the engine's iterator, which aborts the request.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.text.tokenizer import IncrementalDetokenizer

from .cache_messages import lost_message

REQUEST_ID_KEY = "tasuki-request-id"

_REASON = {
    m.FinishReason.STOP: pb.FINISH_REASON_STOP,
    m.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    m.FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


@dataclass(frozen=True)
class Answer:
    """A finished answer; token_ids includes the end token where reason is STOP.

    finished is the last message, not yet written: once it is, the client may act on it.
    """

    token_ids: list[int]
    reason: m.FinishReason
    finished: pb.GenerateResponse


async def write_tokens(
    events: AsyncGenerator[m.TokenOut | m.Finished, None],
    write: Callable[[pb.GenerateResponse], Awaitable[None]],
    detokenizer: IncrementalDetokenizer,
) -> Answer:
    """Raises what the events raise (FrontError)."""
    token_ids: list[int] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, m.TokenOut):
                token_ids.append(event.token)
                await write(_token_chunk(event, detokenizer.push(event.token)))
                continue
            rest = detokenizer.finish()
            if rest:
                await write(pb.GenerateResponse(chunk=pb.TokenChunk(text=rest)))
            finished = pb.GenerateResponse(finished=finished_message(event))
            return Answer(token_ids, event.reason, finished)
    raise AssertionError("an engine's answer ended without Finished")


def finished_message(finished: m.Finished) -> pb.Finished:
    return pb.Finished(reason=_REASON[finished.reason], usage=usage_message(finished.usage))


def usage_message(usage: m.Usage) -> pb.Usage:
    message = pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        prefilled_on=usage.prefilled_on,
        local_fallback=usage.local_fallback,
        time_to_first_token_seconds=usage.time_to_first_token,
        seconds=usage.seconds,
    )
    if usage.hit is not None:
        message.hit.CopyFrom(
            pb.HitBreakdown(
                prompt_tokens=usage.hit.prompt_tokens,
                kv_tokens=usage.hit.kv_tokens,
                usable_tokens=usage.hit.usable_tokens,
                causes=usage.hit.causes,
                checkpoint_source=usage.hit.checkpoint_source,
                lost=None if usage.hit.lost is None else lost_message(usage.hit.lost),
            )
        )
    if usage.transfer is not None:
        message.transfer.CopyFrom(
            pb.TransferReport(
                bytes=usage.transfer.bytes,
                windows=usage.transfer.windows,
                pages=usage.transfer.pages,
                hidden_seconds=usage.transfer.hidden_seconds,
                exposed_seconds=usage.transfer.exposed_seconds,
            )
        )
    if usage.pulled is not None:
        message.pulled.CopyFrom(
            pb.Pulled(
                tokens=usage.pulled.tokens,
                bytes=usage.pulled.bytes,
                seconds=usage.pulled.seconds,
            )
        )
    if usage.route is not None:
        message.route.CopyFrom(pb.Route(choice=usage.route.choice, estimates=usage.route.estimates))
    return message


def _token_chunk(event: m.TokenOut, text: str) -> pb.GenerateResponse:
    chunk = pb.TokenChunk(
        token_ids=[event.token], text=text, logprobs=[event.logprob], margins=[event.margin]
    )
    return pb.GenerateResponse(chunk=chunk)

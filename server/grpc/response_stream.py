"""Writes one answer to a client: engine events in, GenerateResponse out.

Knows neither sessions nor prompts. Whatever ends it early (a cancelled call, a failed write, a
deadline) closes the engine's iterator, which aborts the request.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.messages.proto import finished_to_proto
from tasuki.proto import inference_pb2 as pb
from tasuki.server.text.tokenizer import IncrementalDetokenizer

REQUEST_ID_KEY = "tasuki-request-id"


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
    """Raises what the events raise (ServerError)."""
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
            finished = pb.GenerateResponse(finished=finished_to_proto(event))
            return Answer(token_ids, event.reason, finished)
    raise AssertionError("an engine's answer ended without Finished")


def _token_chunk(event: m.TokenOut, text: str) -> pb.GenerateResponse:
    chunk = pb.TokenChunk(
        token_ids=[event.token], text=text, logprobs=[event.logprob], margins=[event.margin]
    )
    return pb.GenerateResponse(chunk=chunk)

"""Writes one answer to a client: what the engine answers in, GenerateResponse out.

Knows neither sessions nor prompts. Whatever ends it early (a cancelled call, a failed write, a
deadline) closes the engine's iterator, which aborts the request.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.messages.proto import finished_to_proto
from tasuki.proto import inference_pb2 as pb
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart

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
    parts: AsyncGenerator[AnswerPart, None],
    write: Callable[[pb.GenerateResponse], Awaitable[None]],
    detokenizer: IncrementalDetokenizer,
) -> Answer:
    """A message for all tokens that wait together. Raises what the parts raise (ServerError)."""
    token_ids: list[int] = []
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, m.Finished):
                rest = detokenizer.finish()
                if rest:
                    await write(pb.GenerateResponse(chunk=pb.TokenChunk(text=rest)))
                finished = pb.GenerateResponse(finished=finished_to_proto(part))
                return Answer(token_ids, part.reason, finished)
            chunk = _token_chunk(part, detokenizer)
            token_ids += chunk.token_ids
            await write(pb.GenerateResponse(chunk=chunk))
    raise AssertionError("an engine's answer ended without Finished")


def _token_chunk(
    tokens: Sequence[m.TokenOut], detokenizer: IncrementalDetokenizer
) -> pb.TokenChunk:
    return pb.TokenChunk(
        token_ids=[token.token for token in tokens],
        text="".join([detokenizer.push(token.token) for token in tokens]),
        logprobs=[token.logprob for token in tokens],
        margins=[token.margin for token in tokens],
        top=[_top(token) for token in tokens] if any(token.top for token in tokens) else None,
    )


def _top(token: m.TokenOut) -> pb.TopLogprobs:
    return pb.TopLogprobs(
        token_ids=[alternative for alternative, _ in token.top],
        logprobs=[logprob for _, logprob in token.top],
    )

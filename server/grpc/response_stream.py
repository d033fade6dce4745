"""Writes one answer to a client: what the engine answers in, GenerateResponse out.

Knows neither sessions nor prompts. Whatever ends it early (a cancelled call, a failed write, a
deadline) closes the engine's iterator, which aborts the request.
"""

from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tasuki.engine import messages as m
from tasuki.engine.messages.proto import finished_to_proto
from tasuki.proto import inference_pb2 as pb
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart

REQUEST_ID_KEY = "tasuki-request-id"

_SCORES_A_MESSAGE = 1024


@dataclass(frozen=True)
class Answer:
    """A finished answer; token_ids includes the end token where reason is STOP.

    finished is the last message, not yet written: once it is, the client may act on it.
    """

    token_ids: "array[int]"
    reason: m.FinishReason
    finished: pb.GenerateResponse


async def write_tokens(
    parts: AsyncGenerator[AnswerPart, None],
    write: Callable[[pb.GenerateResponse], Awaitable[None]],
    detokenizer: IncrementalDetokenizer,
    scores: Sequence[m.PromptScored] = (),
) -> Answer:
    """A message for all tokens that wait together. scores: of the prompt, which have come before
    the first part, and are written before it. Raises what the parts raise (ServerError)."""
    token_ids = array("i")
    unscored = True
    async with aclosing(parts):
        async for part in parts:
            if unscored:
                unscored = False
                for response in _scored(scores):
                    await write(response)
            if isinstance(part, m.Finished):
                rest = detokenizer.finish()
                if rest:
                    await write(pb.GenerateResponse(chunk=pb.TokenChunk(text=rest)))
                finished = pb.GenerateResponse(finished=finished_to_proto(part))
                return Answer(token_ids, part.reason, finished)
            response = pb.GenerateResponse()
            _fill(response.chunk, part, detokenizer)
            token_ids.extend([token.token for token in part])
            await write(response)
    raise AssertionError("an engine's answer ended without Finished")


def _scored(scores: Sequence[m.PromptScored]) -> Iterator[pb.GenerateResponse]:
    """In messages that are far below gRPC's bound."""
    for piece in scores:
        for start in range(0, len(piece), _SCORES_A_MESSAGE):
            some = slice(start, start + _SCORES_A_MESSAGE)
            tops = zip(piece.top_tokens[some], piece.top_logprobs[some], strict=True)
            yield pb.GenerateResponse(
                prompt_logprobs=pb.PromptLogprobs(
                    first=piece.first + start,
                    logprobs=piece.logprobs[some],
                    ranks=piece.ranks[some],
                    top=[
                        pb.TopLogprobs(token_ids=tokens, logprobs=logprobs)
                        for tokens, logprobs in tops
                    ]
                    if piece.top_tokens.shape[1]
                    else None,
                )
            )


def _fill(
    chunk: pb.TokenChunk, tokens: Sequence[m.TokenOut], detokenizer: IncrementalDetokenizer
) -> None:
    """The message is filled in place, at a third of what its constructors take."""
    text = ""
    for token in tokens:
        text += detokenizer.push(token.token)
        chunk.token_ids.append(token.token)
        chunk.logprobs.append(token.logprob)
        chunk.margins.append(token.margin)
    chunk.text = text
    if any(token.top for token in tokens):
        chunk.top.extend([_top(token) for token in tokens])


def _top(token: m.TokenOut) -> pb.TopLogprobs:
    return pb.TopLogprobs(
        token_ids=[alternative for alternative, _ in token.top],
        logprobs=[logprob for _, logprob in token.top],
    )

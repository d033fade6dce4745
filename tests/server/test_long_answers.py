"""Tests of memory kept by a node for a long answer: at most a few bytes a token."""

import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator, Callable

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.proto import inference_pb2 as pb
from tasuki.server.grpc.generate_messages import write_tokens
from tasuki.server.openai.chat import ChatReply
from tasuki.server.openai.completions import CompletionReply, ShownFields
from tasuki.server.openai.reply import ChunkedReply, ReplyHead, ReplyShape
from tasuki.server.openai.token_details import ScoredPrompt, TokenNames
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.text_answer import Ending, Piece, Thinking
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import AnswerPart
from tests.harness.grpc_fixtures import usage
from tests.harness.traced_memory import growing
from tests.harness.waiting import HANG_SECONDS

TOKENS = 20_000
MOST_BYTES = 6 * TOKENS
"""Four bytes a token, and the spare capacity of an array."""
ONCE_BYTES = 50_000
"""Bytes allocated once, at first use."""
A = m.RequestId("a")
ENDING = Ending(m.FinishReason.STOP, 1, usage(5, 1))


def drawn(index: int) -> m.TokenOut:
    # Each number is a separate object, as sampled tokens are.
    return m.TokenOut(A, 1000 + index % 500, -0.5, 1.5, index)


def completion(codec: TextCodec, with_logprobs: bool) -> ReplyShape:
    head = ReplyHead("a", "model")
    shown = ShownFields(echo=False, logprobs=0 if with_logprobs else None, prompt_logprobs=None)
    prompt = ScoredPrompt(np.zeros(1, dtype=np.int32))
    return CompletionReply(head, TokenNames(codec.tokenizer), 0, shown, None, prompt, streamed=True)


def chat(codec: TextCodec, with_logprobs: bool) -> ReplyShape:
    head, parser = ReplyHead("a", "model"), AnswerParser(Thinking.NEVER, [])
    names = TokenNames(codec.tokenizer)
    return ChatReply(head, parser, names, with_logprobs=with_logprobs, streamed=True)


def reasoning(codec: TextCodec, with_logprobs: bool) -> ReplyShape:
    head, parser = ReplyHead("a", "model"), AnswerParser(Thinking.OPENED, [])
    names = TokenNames(codec.tokenizer)
    return ChatReply(head, parser, names, with_logprobs=with_logprobs, streamed=True)


@pytest.mark.parametrize("with_logprobs", [False, True], ids=["plain", "logprobs"])
@pytest.mark.parametrize("shape", [completion, chat, reasoning])
def test_a_streamed_reply_keeps_nothing_of_its_answer(
    codec: TextCodec, shape: Callable[[TextCodec, bool], ReplyShape], with_logprobs: bool
) -> None:
    shapes = [shape(codec, with_logprobs)]
    (reply,) = ChunkedReply(shapes, include_usage=False, with_hit=False).writers()
    tokens = TOKENS // 5 if with_logprobs else TOKENS
    text = "it"
    assert text.encode() in reply.piece(Piece(text, drawn(0)))
    with growing() as grown:
        for index in range(tokens):
            assert reply.piece(Piece(text, drawn(index)))
        assert grown() < ONCE_BYTES


def test_a_reply_goes_with_its_writers_without_a_collection(codec: TextCodec) -> None:
    gc.disable()
    try:
        shape = chat(codec, False)
        writers = ChunkedReply([shape, shape], include_usage=True, with_hit=True).writers()
        for writer in writers:
            writer.piece(Piece("it", drawn(0)))
            writer.ending(Piece("", None), ENDING)
        kept = weakref.ref(shape)
        del shape, writer, writers
        assert kept() is None
    finally:
        gc.enable()


def test_an_engine_keeps_four_bytes_of_a_token() -> None:
    request = Request(A, np.arange(5, dtype=np.int32), SamplingParams(max_new_tokens=TOKENS))
    with growing() as grown:
        for index in range(TOKENS):
            request.output.append(drawn(index).token)
        assert grown() < MOST_BYTES
    assert request.token_slice(3, 8) == [3, 4, 1000, 1001, 1002]
    assert request.token_slice(6, 8) == [1001, 1002]
    assert request.tokens().tolist()[4:7] == [4, 1000, 1001]
    # The returned copies share no memory with the array; otherwise it could not grow.
    request.output.append(9)


async def test_a_call_keeps_four_bytes_of_a_token(codec: TextCodec) -> None:
    end = m.Finished(A, m.FinishReason.LENGTH, usage(5, TOKENS))
    left: list[int] = []

    async def write(message: pb.GenerateResponse) -> None:
        """Drop the message."""

    with growing() as grown:

        async def parts() -> AsyncGenerator[AnswerPart, None]:
            for index in range(TOKENS):
                yield [drawn(index)]
            left.append(grown())
            yield end

        answer = await write_tokens(parts(), write, codec.detokenizer())
    assert len(answer.token_ids) == TOKENS and answer.token_ids[1] == 1001
    assert left[0] < 2 * MOST_BYTES


# The script keeps as many containers as thousands of streams do, none of them garbage.
STREAMS_COME = """
import gc
from tasuki.server.daemon.startup import spare_collections
spare_collections()
before = gc.get_stats()[2]["collections"]
kept = [[] for _ in range(1_000_000)]
print(gc.get_stats()[2]["collections"] - before)
"""


def test_streams_that_come_do_not_have_all_others_looked_through() -> None:
    run = [sys.executable, "-c", STREAMS_COME]
    found = subprocess.run(run, capture_output=True, text=True, check=True, timeout=HANG_SECONDS)
    assert int(found.stdout) <= 1

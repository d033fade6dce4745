"""A call's messages leave in order, one at a time, and wake no task as long as the client reads."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import cast

import pytest

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import CallContext
from tasuki.server.grpc.message_flow import MessageFlow
from tasuki.server.grpc.response_stream import ResponseStream
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import AnswerPart, UnreadAnswer
from tests.harness.grpc_fixtures import usage

A = m.RequestId("a")
END = m.Finished(A, m.FinishReason.LENGTH, usage(1, 3))


def token(index: int) -> m.TokenOut:
    return m.TokenOut(A, 70 + index, -0.5, 1.5, index)


class Client:
    """A call's context: each message waits until the client has read it. left: token ids of
    messages."""

    def __init__(self) -> None:
        self.left: list[list[int]] = []
        self.unread: list[asyncio.Future[None]] = []

    async def write(self, message: pb.GenerateResponse) -> None:
        assert all(future.done() for future in self.unread), "one message at a time"
        self.left.append(list(message.chunk.token_ids))
        self.unread.append(asyncio.get_running_loop().create_future())
        await self.unread[-1]

    def read(self, error: Exception | None = None) -> None:
        if error is None:
            self.unread[-1].set_result(None)
        else:
            self.unread[-1].set_exception(error)


class Call:
    """One answer on its way to a client; the task that reads it counts how often it was woken."""

    def __init__(self, codec: TextCodec) -> None:
        self.client = Client()
        self.flow = MessageFlow(cast(CallContext, self.client))
        self.stream = ResponseStream(self.flow, codec.detokenizer())
        self.unread = UnreadAnswer(100, self.stream.take)
        self.woken = 0

    async def run(self) -> None:
        with closing(self.flow):
            answer = await self.stream.write(self._parts())
            await self.flow.write(answer.finished)
            await self.flow.settle()

    async def _parts(self) -> AsyncGenerator[AnswerPart, None]:
        while True:
            part = await self.unread.read()
            self.woken += 1
            yield part


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_tokens_of_a_client_that_reads_wake_no_task(codec: TextCodec) -> None:
    async def script() -> None:
        call = Call(codec)
        running = asyncio.ensure_future(call.run())
        await turns()
        for index in range(20):
            call.unread.put(token(index))
            await turns()
            assert call.client.left[-1] == [70 + index]
            call.client.read()
        assert call.woken == 0
        call.unread.end(END)
        await turns()
        assert call.client.left[-1] == [] and not running.done(), "the end has not left yet"
        call.client.read()
        await running
        assert call.woken == 1

    asyncio.run(script())


def test_what_a_slow_client_lets_wait_leaves_together_and_in_order(codec: TextCodec) -> None:
    async def script() -> None:
        call = Call(codec)
        running = asyncio.ensure_future(call.run())
        await turns()
        for index in range(6):
            call.unread.put(token(index))
            await turns()
        call.unread.end(END)
        while not running.done():
            await turns()
            call.client.read()
            await turns()
        assert [ids for ids in call.client.left if ids] == [[70], [71], [72, 73, 74, 75]]
        await running

    asyncio.run(script())


def test_choices_of_a_call_take_turns(codec: TextCodec) -> None:
    async def script() -> None:
        client = Client()
        flow = MessageFlow(cast(CallContext, client))
        first = ResponseStream(flow, codec.detokenizer())
        second = ResponseStream(flow, codec.detokenizer(), 1)
        assert first.take([token(0)]) and not second.take([token(1)])
        waiting = [
            asyncio.ensure_future(flow.write(pb.GenerateResponse(choice=choice)))
            for choice in (1, 2, 3)
        ]
        for _ in waiting:
            await turns()
            client.read()
        await asyncio.gather(*waiting)
        assert len(client.left) == 4 and not flow.flows
        client.read()
        assert flow.flows

    asyncio.run(script())


def test_a_write_that_fails_ends_the_answer_once_it_shows(codec: TextCodec) -> None:
    async def script() -> None:
        call = Call(codec)
        running = asyncio.ensure_future(call.run())
        await turns()
        call.unread.put(token(0))
        await turns()
        call.client.read(OSError("gone"))
        await turns()
        call.unread.put(token(1))
        with pytest.raises(OSError, match="gone"):
            await running
        assert call.client.left == [[70]]

    asyncio.run(script())


def test_a_call_that_is_cancelled_leaves_nothing_under_way(codec: TextCodec) -> None:
    async def script() -> None:
        call = Call(codec)
        running = asyncio.ensure_future(call.run())
        await turns()
        for index in range(3):
            call.unread.put(token(index))
            await turns()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert call.flow.flows and call.client.left == [[70]]
        call.client.read()
        await turns()

    asyncio.run(script())

"""A client of the streaming call tasuki.v1.Inference.Generate. Thread rule: one event loop's
thread."""

import asyncio
import time
from collections.abc import Sequence

import grpc

from tasuki.client.channel import open_async_channel
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc

from .answer import AnswerReader, answered_or_silent


class GrpcCaller:
    """A gRPC client over one channel. address: HOST:PORT of the server. temperature: of the
    sampling."""

    def __init__(self, address: str, temperature: float = 0.0) -> None:
        self._temperature = temperature
        self._channel = open_async_channel(address, None)
        self._stub = pb_grpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]

    async def ask(self, prompt: Sequence[int], reader: AnswerReader, patience: float) -> None:
        """Send a request. Returns when the answer has ended, or nothing has arrived for `patience`
        seconds. Cancelling cancels the call."""
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt),
            sampling=pb.Sampling(
                max_new_tokens=reader.answer.asked,
                temperature=self._temperature,
                ignore_eos=True,
            ),
        )
        reader.answer.started = reader.last = time.monotonic()
        reading = asyncio.ensure_future(self._read(request, reader))
        try:
            await answered_or_silent(reading, reader, patience)
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _read(self, request: pb.GenerateRequest, reader: AnswerReader) -> None:
        answer = reader.answer
        try:
            async for message in self._stub.Generate(request):
                now = reader.last = time.monotonic()
                if message.WhichOneof("event") == "chunk":
                    reader.take(now, message.chunk.token_ids)
                else:
                    answer.cached_tokens = message.finished.usage.hit.usable_tokens
        except grpc.aio.AioRpcError as error:
            answer.error = f"{error.code().name}: {error.details()}"[:300]
        finally:
            answer.ended = time.monotonic()

    async def close(self) -> None:
        await self._channel.close(None)

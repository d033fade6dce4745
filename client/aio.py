"""The same client for asyncio: AsyncClient and AsyncSession, as Client and Session but awaited.

One event loop's thread. The rules of reopening and retrying are those of session.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc

from ..engine.messages import FinishReason
from ..front.tls import ClientTls
from ..proto import inference_pb2 as pb
from ..proto import inference_pb2_grpc as pb_grpc
from .answer import Answer, AnswerParts, Piece
from .channel import open_async_channel
from .conversation import Conversation
from .errors import ClientError, client_error
from .prompt import Prompt, SamplingOptions, generate_request
from .retry import RetryPolicy, is_transient

Result = TypeVar("Result")
Call = Any
"""grpc.aio's call object, which has no useful type."""


class AsyncClient:
    """One channel to a decode or fused daemon. Raises ClientError."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """As Client. REQUIRES: a running event loop."""
        self._channel = open_async_channel(target, tls)
        self._retry = retry or RetryPolicy()
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._inference = pb_grpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        self._sessions = pb_grpc.SessionStub(self._channel)  # type: ignore[no-untyped-call]

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        cache_salt: bytes = b"",
        marks: Sequence[int] = (),
        **sampling: Unpack[SamplingOptions],
    ) -> "AsyncAnswer":
        """One request with its whole prompt; the call begins when the answer is first awaited."""
        request = generate_request(prompt, request_id, cache_salt, marks, sampling)

        async def start() -> Call:
            return self._inference.Generate(request, metadata=self._metadata)

        return AsyncAnswer(start, self._retry, _nothing, _ignored)

    async def abort(self, request_id: str) -> None:
        """Idempotent: ends the request where it still lives."""
        request = pb.AbortRequest(request_id=request_id)
        await _call(self._inference.Abort(request, metadata=self._metadata))

    async def open_session(self, cache_salt: bytes = b"") -> "AsyncSession":
        conversation = Conversation(cache_salt)
        session = AsyncSession(self._sessions, conversation, self._retry, self._metadata, "")
        await session.persist(_none)
        return session

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncAnswer:
    """`async for` pieces, or await `result`. Cancelling the task that reads it aborts the request.

    Attempts as AnswerStream's.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Call]],
        retry: RetryPolicy,
        failed: Callable[[], None],
        finished: Callable[[Answer], None],
    ) -> None:
        """start: one attempt; failed, finished: as answer.Ask."""
        self._start = start
        self._retry = retry
        self._failed = failed
        self._finished = finished
        self._parts = AnswerParts()
        self._call: Call | None = None
        self.cancelled = False

    @property
    def finished(self) -> bool:
        return self._parts.finished

    async def __aiter__(self) -> AsyncIterator[Piece]:
        pauses = self._retry.pauses()
        while not self._parts.finished:
            try:
                if self._call is None:
                    self._call = await self._start()
                async for response in self._call:
                    piece = self._parts.take(response)
                    if piece is not None:
                        yield piece
                    else:
                        self._finished(self._parts.answer())
                return
            except (grpc.RpcError, ClientError) as caught:
                self._call = None
                self._failed()
                error = caught if isinstance(caught, ClientError) else client_error(caught)
                if self._parts.begun or self.cancelled or not is_transient(error):
                    raise error from caught
                pause = next(pauses, None)
                if pause is None:
                    raise error from caught
            await asyncio.sleep(pause)

    async def result(self) -> Answer:
        """Reads what has not been read and returns the whole answer."""
        async for _ in self:
            pass
        return self._parts.answer()

    def cancel(self) -> None:
        self.cancelled = True
        if self._call is not None:
            self._call.cancel()


class AsyncSession:
    """A conversation whose tokens the server keeps; one task at a time. `async with` closes it."""

    def __init__(
        self,
        stub: pb_grpc.SessionStub,
        conversation: Conversation,
        retry: RetryPolicy,
        metadata: tuple[tuple[str, str], ...],
        id: str,
    ) -> None:
        """id: as the node knows the conversation; empty where it is yet to be told."""
        self.id = id
        self._stub: Any = stub
        self._conversation = conversation
        self._retry = retry
        self._metadata = metadata
        self._lost = not id
        self._closed = False
        self._turn: AsyncAnswer | None = None

    async def append(self, prompt: Prompt) -> int:
        """Adds to the end of the conversation; returns its length in tokens."""

        async def add() -> int:
            request = pb.SessionAppendRequest(session_id=self.id, **prompt.fields())
            return int((await self._ask(self._stub.Append, request)).total_tokens)

        total = await self.persist(add)
        self._conversation.appended(prompt)
        return total

    def generate(self, *, request_id: str = "", **sampling: Unpack[SamplingOptions]) -> AsyncAnswer:
        """Answers the conversation so far. A finished answer becomes part of it."""
        request = pb.SessionGenerateRequest(request_id=request_id, sampling=pb.Sampling(**sampling))

        async def start() -> Call:
            await self._reopen_if_lost()
            request.session_id = self.id
            return self._stub.Generate(request, metadata=self._metadata)

        self._turn = AsyncAnswer(start, self._retry, self._turn_failed, self._turn_finished)
        return self._turn

    async def fork(self) -> "AsyncSession":
        """A second session with the same conversation; the two go separate ways."""

        async def copy() -> str:
            request = pb.SessionForkRequest(session_id=self.id)
            return str((await self._ask(self._stub.Fork, request)).session_id)

        forked = await self.persist(copy)
        conversation = self._conversation.fork()
        return AsyncSession(self._stub, conversation, self._retry, self._metadata, forked)

    async def close(self) -> None:
        self._closed = True
        await self._ask(self._stub.Close, pb.SessionCloseRequest(session_id=self.id))

    async def persist(self, operation: Callable[[], Awaitable[Result]]) -> Result:
        """An operation on the session, opened again where the node has lost it."""
        pauses = self._retry.pauses()
        while True:
            try:
                await self._reopen_if_lost()
                result = await operation()
            except ClientError as error:
                if self._closed or not is_transient(error):
                    raise
                self._lost = True
                pause = next(pauses, None)
                if pause is None:
                    raise
            else:
                if self._turn is not None:
                    await self._turn.result()
                return result
            await asyncio.sleep(pause)

    async def _reopen_if_lost(self) -> None:
        if self._turn is not None and self._turn.cancelled and not self._turn.finished:
            # It may have ended just before, and then the node has an answer that nobody read.
            self._lost = True
        if not self._lost or self._closed:
            return
        request = pb.SessionOpenRequest(cache_salt=self._conversation.cache_salt)
        left, self.id = self.id, (await self._ask(self._stub.Open, request)).session_id
        for append in self._conversation.replay(self.id):
            await self._ask(self._stub.Append, append)
        self._lost, self._turn = False, None
        if left:
            with suppress(ClientError):
                await self._ask(self._stub.Close, pb.SessionCloseRequest(session_id=left))

    def _turn_failed(self) -> None:
        self._lost = True

    def _turn_finished(self, answer: Answer) -> None:
        self._turn = None
        if answer.reason is not FinishReason.ABORT:
            self._conversation.answered(answer.token_ids)

    async def _ask(self, method: Any, request: Any) -> Any:
        return await _call(method(request, metadata=self._metadata))

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()


async def _call(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.RpcError as error:
        raise client_error(error) from error


async def _none() -> None:
    return None


def _nothing() -> None:
    return None


def _ignored(answer: Answer) -> None:
    return None

"""The same client for asyncio: AsyncClient and AsyncSession, as Client and Session but awaited.

One event loop's thread. client/session_protocol.py has the rules of reopening and retrying.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar, Unpack

import grpc

from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.tls import ClientTls

from .answer import Answer, AnswerReader, Piece, TurnOwner
from .cache_events import EventBatch, EventParts
from .channel import open_async_channel
from .conversation import Conversation
from .errors import ClientError, client_error
from .moving_session import Move, moves_of
from .prompt import (
    NO_TARGETS,
    Prompt,
    SamplingOptions,
    Targets,
    generate_request,
    sampling_to_proto,
)
from .retry import RetryPolicy
from .session_protocol import Call, Over, Pause, ReadTurn, SessionLife, Steps, advance

Result = TypeVar("Result")
AsyncCall = Any
"""grpc.aio's call object, which has no useful type."""
StubOf = Callable[[str], Any]
"""By a node's address, what calls its Session service."""
Metadata = tuple[tuple[str, str], ...]


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
        self._admin: Any = pb_grpc.CacheAdminStub(self._channel)  # type: ignore[no-untyped-call]

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        cache_salt: bytes = b"",
        marks: Sequence[int] = (),
        priority: int = 0,
        n: int = 1,
        prompt_logprobs: int | None = None,
        prediction: Sequence[int] = (),
        targets: Targets = NO_TARGETS,
        **sampling: Unpack[SamplingOptions],
    ) -> "AsyncAnswer":
        """One request with its whole prompt; the call begins when the answer is first awaited.
        priority: of a caller's requests the lowest is begun first. n, prompt_logprobs: as of
        Client.generate."""
        request = generate_request(
            prompt,
            request_id,
            cache_salt,
            marks,
            priority,
            n,
            prompt_logprobs,
            prediction,
            targets,
            sampling,
        )

        async def start() -> AsyncCall:
            return self._inference.Generate(request, metadata=self._metadata)

        return AsyncAnswer(start, self._retry, choices=n)

    async def abort(self, request_id: str) -> None:
        """Idempotent: ends the request where it still lives."""
        request = pb.AbortRequest(request_id=request_id)
        await _call(self._inference.Abort(request, metadata=self._metadata))

    async def open_session(self, cache_salt: bytes = b"") -> "AsyncSession":
        life = SessionLife(Conversation(cache_salt), self._retry, id="")
        return await opened(life, lambda node: self._sessions, self._metadata)

    async def stats(self) -> pb.StatsResponse:
        """As Client.stats."""
        request = pb.StatsRequest()
        reply: pb.StatsResponse = await _call(self._admin.Stats(request, metadata=self._metadata))
        return reply

    async def explain(self, request_id: str) -> pb.ExplainResponse:
        """As Client.explain."""
        request = pb.ExplainRequest(request_id=request_id)
        reply: pb.ExplainResponse = await _call(
            self._admin.Explain(request, metadata=self._metadata)
        )
        return reply

    async def watch_cache(self, stream: str = "usable") -> AsyncGenerator[EventBatch, None]:
        """As Client.watch_cache."""
        wanted = pb.WatchEventsRequest.Stream.Value(f"STREAM_{stream.upper()}")
        request = pb.WatchEventsRequest(stream=wanted)
        call = self._admin.WatchEvents(request, metadata=self._metadata)
        parts = EventParts()
        try:
            async for part in call:
                batch = parts.take(part)
                if batch is not None:
                    yield batch
        except grpc.RpcError as error:
            raise client_error(error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        await self._channel.close(None)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncAnswer(AnswerReader):
    """`async for` pieces, or await `result`. Cancelling the task that reads it aborts the request.

    Attempts as AnswerStream's.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[AsyncCall]],
        retry: RetryPolicy,
        owner: TurnOwner | None = None,
        choices: int = 1,
    ) -> None:
        """start: one attempt."""
        super().__init__(retry, owner, choices)
        self._start = start
        self._call: AsyncCall | None = None

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while not self.finished:
            try:
                if self._call is None:
                    self._call = await self._start()
                async for response in self._call:
                    piece = self._piece(response)
                    if piece is not None:
                        yield piece
                return
            except (grpc.RpcError, ClientError) as error:
                self._call = None
                pause = self._pause_after(error)
            await asyncio.sleep(pause)

    async def result(self) -> Answer:
        """Reads what has not been read and returns the whole answer, the first of several."""
        return (await self.results())[0]

    async def results(self) -> list[Answer]:
        """Likewise, and returns every answer."""
        async for _ in self:
            pass
        return self._parts.answers()

    def cancel(self) -> None:
        self.cancelled = True
        if self._call is not None:
            self._call.cancel()


class AsyncSession:
    """A conversation whose tokens the server keeps; one task at a time. `async with` closes it."""

    def __init__(self, stub_of: StubOf, metadata: Metadata, life: SessionLife) -> None:
        self._stub_of = stub_of
        self._metadata = metadata
        self._life = life

    @property
    def id(self) -> str:
        """The node's id of the session; another one after it was opened again."""
        return self._life.id

    @property
    def moves(self) -> tuple[Move, ...]:
        """As Session.moves."""
        return moves_of(self._life)

    @property
    def node(self) -> str:
        """As Session.node."""
        return self._life.node

    async def append(self, prompt: Prompt) -> int:
        """Adds to the end of the conversation; returns its length in tokens."""
        return await self.take(self._life.append(prompt))

    def generate(
        self,
        *,
        request_id: str = "",
        priority: int = 0,
        targets: Targets = NO_TARGETS,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncAnswer:
        """Answers the conversation so far. A finished answer becomes part of it. priority: of a
        caller's requests the lowest is begun first."""
        request = pb.SessionGenerateRequest(
            request_id=request_id,
            sampling=sampling_to_proto(sampling),
            priority=priority,
            targets=targets.to_proto(),
        )

        async def start() -> AsyncCall:
            await self.take(life.attempt_turn(request))
            metadata = (*self._metadata, *life.metadata)
            return self._stub_of(life.node).Generate(request, metadata=metadata)

        life = self._life
        turn = AsyncAnswer(start, life.retry, life)
        life.turn_begun(turn)
        return turn

    async def fork(self) -> "AsyncSession":
        """A second session with the same conversation; the two go separate ways."""
        return AsyncSession(self._stub_of, self._metadata, await self.take(self._life.fork()))

    async def close(self) -> None:
        await self.take(self._life.close())

    async def take(self, steps: Steps[Result]) -> Result:
        """Takes the steps of an operation, awaiting each. Raises ClientError."""
        outcome: Any = None
        while True:
            step = advance(steps, outcome)
            if isinstance(step, Over):
                return step.result
            outcome = None
            try:
                match step:
                    case Call(method, request, node, seconds):
                        unary = getattr(self._stub_of(node), method)
                        outcome = await _call(
                            unary(request, metadata=self._metadata, timeout=seconds)
                        )
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case ReadTurn(AsyncAnswer() as turn):
                        await turn.result()
            except ClientError as error:
                outcome = error

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()


async def opened(life: SessionLife, stub_of: StubOf, metadata: Metadata) -> AsyncSession:
    session = AsyncSession(stub_of, metadata, life)
    await session.take(life.open())
    return session


async def _call(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except grpc.RpcError as error:
        raise client_error(error) from error

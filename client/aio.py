"""The asyncio client of one node, and its sessions.

A session outlives its node. After a restart or an expiry, the conversation is opened again and
replayed from the client's copy. The cache then still holds most of its prefix. Every node gives the
same answers. client/session_protocol.py has the rules of reopening and retrying.

Over an AioWire everything belongs to one event loop. session.py runs this code over a BlockingWire.
"""

from collections.abc import AsyncGenerator
from typing import Any, Self, TypeVar

from tasuki.proto import inference_pb2 as pb
from tasuki.utils.tls import ClientTls

from .answer import AsyncAnswer
from .cache_events import CacheWatch, EventBatch
from .channel import AioWire, ResponseStream, Wire, open_async_channel
from .errors import ClientError, RetryPolicy
from .moving_session import Move, moves_of
from .prompt import ClientRequests, Prompt, SessionRequests
from .session_protocol import (
    Call,
    Conversation,
    Over,
    Pause,
    ReadTurn,
    SessionLife,
    Steps,
    advance,
)

Result = TypeVar("Result")


class NodeCalls:
    """The calls to one node, over blocking or awaited connections. Raises ClientError."""

    def __init__(self, wire: Wire, retry: RetryPolicy | None) -> None:
        self.wire = wire
        self._retry = retry or RetryPolicy()

    def answer(self, request: pb.GenerateRequest, choices: int) -> AsyncAnswer:
        """Return the request's answer, not yet read; reading sends the request. choices: number of
        answers."""

        async def start() -> ResponseStream:
            return self.wire.stream(self.wire.stubs().inference.Generate, request)

        return AsyncAnswer(self.wire, start, self._retry, choices=choices)

    async def abort(self, request_id: str) -> None:
        """End the request if it is still running. Idempotent."""
        request = pb.AbortRequest(request_id=request_id)
        await self.wire.call(self.wire.stubs().inference.Abort, request)

    async def open_session(self, cache_salt: bytes = b"") -> "AsyncSession":
        """Open a conversation and return its session. cache_salt: only conversations of one salt
        share cached prefixes."""
        life = SessionLife(Conversation(cache_salt), self._retry, id="")
        return await opened(life, self.wire)

    async def stats(self) -> pb.StatsResponse:
        """Return the node's counts of pages and slots by state, and its cache's counters."""
        reply: pb.StatsResponse = await self._admin("Stats", pb.StatsRequest())
        return reply

    async def explain(self, request_id: str) -> pb.ExplainResponse:
        """Return the report on an ended request of this node. Raises ClientError, of kind
        unknown_request if the node has no record of the id."""
        request = pb.ExplainRequest(request_id=request_id)
        reply: pb.ExplainResponse = await self._admin("Explain", request)
        return reply

    async def flush(self) -> int:
        """Drop the cached states not in use. Return the number of dropped pages and checkpoints."""
        return int((await self._admin("Flush", pb.FlushRequest())).dropped)

    async def watch_cache(self, stream: str = "usable") -> AsyncGenerator[EventBatch, None]:
        """Yield the changes of the node's cache as batches, a snapshot first; PrefixIndex applies
        them. The iterator never ends: close it. `stream`: usable (prefixes with a checkpoint) or
        all (pages too)."""
        watch = CacheWatch(self.wire, stream)
        try:
            while (batch := await watch.next_batch()) is not None:
                yield batch
        finally:
            watch.cancel()

    async def close(self) -> None:
        await self.wire.close()

    async def _admin(self, method: str, request: Any) -> Any:
        return await self.wire.call(getattr(self.wire.stubs().admin, method), request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient(NodeCalls, ClientRequests[AsyncAnswer]):
    """An asyncio client with one channel to a decode or fused daemon. Raises ClientError."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """Open the channel. Arguments are those of Client. REQUIRES: a running event loop."""
        super().__init__(AioWire({"": open_async_channel(target, tls)}, api_key), retry)

    def _ask(self, request: pb.GenerateRequest, choices: int) -> AsyncAnswer:
        return self.answer(request, choices)


class AsyncSession(SessionRequests[AsyncAnswer]):
    """A conversation with its tokens on the server. One task at a time may use it. `async with`
    closes it, unless left by an exception."""

    def __init__(self, wire: Wire, life: SessionLife) -> None:
        self._wire = wire
        self._life = life

    @property
    def id(self) -> str:
        """Return the node's id of the session. It changes when the session is opened again."""
        return self._life.id

    @property
    def moves(self) -> tuple[Move, ...]:
        """Return the session's moves between the fleet's nodes so far."""
        return moves_of(self._life)

    @property
    def node(self) -> str:
        """Return the address of the session's node in the fleet; empty if the client has only one
        node."""
        return self._life.node

    async def append(self, prompt: Prompt) -> int:
        """Add a prompt to the end of the conversation. Return the conversation's length in
        tokens."""
        return await self.take(self._life.append(prompt))

    def answer(self, request: pb.SessionGenerateRequest) -> AsyncAnswer:
        """Return the next turn's answer, not yet read; it is requested at its first read."""
        life = self._life

        async def start() -> ResponseStream:
            await self.take(life.attempt_turn(request))
            generate = self._wire.stubs(life.node).session.Generate
            return self._wire.stream(generate, request, life.metadata)

        turn = AsyncAnswer(self._wire, start, life.retry, life)
        life.turn_begun(turn)
        return turn

    def _ask(self, request: pb.SessionGenerateRequest) -> AsyncAnswer:
        return self.answer(request)

    async def fork(self) -> "AsyncSession":
        """Return a second session with the same conversation. Later turns of the two are
        independent."""
        return AsyncSession(self._wire, await self.take(self._life.fork()))

    async def close(self) -> None:
        await self.take(self._life.close())

    async def take(self, steps: Steps[Result]) -> Result:
        """Run the steps of a session's operation, awaiting each. Return its result. Raises
        ClientError."""
        outcome: Any = None
        while True:
            step = advance(steps, outcome)
            if isinstance(step, Over):
                return step.result
            outcome = None
            try:
                match step:
                    case Call(method, request, node, seconds):
                        unary = getattr(self._wire.stubs(node).session, method)
                        outcome = await self._wire.call(unary, request, seconds)
                    case Pause(seconds):
                        await self._wire.sleep(seconds)
                    case ReadTurn(AsyncAnswer() as turn):
                        await turn.result()
            except ClientError as error:
                outcome = error

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()


async def opened(life: SessionLife, wire: Wire) -> AsyncSession:
    session = AsyncSession(wire, life)
    await session.take(life.open())
    return session

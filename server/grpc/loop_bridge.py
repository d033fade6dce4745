"""Lets a gRPC server live on one event loop and the services' methods run on another.

Is the first interceptor. Messages cross as bytes, so that neither their reading nor the check of
the caller costs the server's loop anything. Thread rule: intercept_service and the handler that it
returns run on the server's loop; later interceptors, handlers and deserializers run on the other
one, with a context that crosses back. Invariants: the end of a call on either side ends it on the
other; where the other loop stands, the caller gets a typed error after `patience` seconds, and the
server's loop loses nothing.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from tasuki.server.errors import CallContext, LoopBehind
from tasuki.utils.loops.loop_thread import run_on

from .malformed_requests import Failed, method_of, refusing

_PATIENCE_SECONDS = 30.0


class Bridge(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stay: Sequence[str],
        failed: Failed,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """stay: full names of services whose methods run on the server's loop, as gRPC's own do.
        failed: counts, on `loop`, a call that is refused here. patience: seconds within which
        `loop` must begin a call."""
        self._loop = loop
        self._stay = (*(f"/{service}/" for service in stay), "/grpc.")

        def count(kind: str) -> None:
            loop.call_soon_threadsafe(failed, kind)

        self._failed = count
        self._patience = patience

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if handler_call_details.method.startswith(self._stay):
            return await continuation(handler_call_details)

        async def found() -> Any:
            return await continuation(handler_call_details)

        try:
            handler = await asyncio.wait_for(run_on(self._loop, found()), self._patience)
        except TimeoutError:
            return refusing(
                LoopBehind(
                    f"this node's callers have waited for more than {self._patience:g} s: ask "
                    "another node, or this one again later"
                ),
                self._failed,
            )
        return None if handler is None else _bridged(handler, self._loop)


class _Crossing:
    """A call's context for its method on the other loop. Methods that wait run on the server's
    loop; attributes are read and set directly."""

    def __init__(
        self,
        context: CallContext,
        home: asyncio.AbstractEventLoop,
        serialize: Callable[[Any], bytes],
    ) -> None:
        self._context = context
        self._home = home
        self._serialize = serialize

    async def write(self, message: Any) -> None:
        await self._there(self._context.write, self._serialize(message))

    async def send_initial_metadata(self, metadata: Any) -> None:
        await self._there(self._context.send_initial_metadata, metadata)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailer: Any = ()) -> None:
        """Raises, as gRPC's does."""
        await self._there(self._context.abort, code, details, trailer)

    async def _there(self, method: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        async def call() -> None:
            await method(*arguments)

        await run_on(self._home, call())

    async def requests(
        self, given: AsyncIterator[bytes], read: Callable[[bytes], Any]
    ) -> AsyncIterator[Any]:
        async def following() -> bytes | None:
            return await anext(given, None)

        while (data := await run_on(self._home, following())) is not None:
            yield read(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _bridged(handler: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """A handler of the same kind whose method runs on `loop`."""
    method, build = method_of(handler)
    read = handler.request_deserializer or _as_it_is
    serialize = handler.response_serializer or _as_it_is

    async def answer(given: Any, context: Any) -> Any:
        asked = context.requests(given, read) if handler.request_streaming else read(given)
        answered = method(asked, context)
        if inspect.isasyncgen(answered):
            async with aclosing(answered) as messages:
                async for message in messages:
                    await context.write(message)
            return None
        if inspect.isawaitable(answered):
            answered = await answered
        return None if handler.response_streaming else serialize(answered)

    async def call(given: Any, context: CallContext) -> Any:
        crossing = _Crossing(context, asyncio.get_running_loop(), serialize)
        return await run_on(loop, answer(given, crossing))

    return build(call)


def _as_it_is(message: Any) -> Any:
    return message

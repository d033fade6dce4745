"""Calls that are one per node, handed on by a front worker to the registry, whose answers come back
as they are.

The registry has the same services and routes on Unix sockets (node_sockets.py) and identifies
callers itself. One event loop's thread. Invariant: a client that leaves ends its call there too.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from aiohttp import ClientSession, ClientTimeout, UnixConnector, web
from multidict import CIMultiDict
from yarl import URL

from tasuki.server.auth.request_context import TRACE_HEADER
from tasuki.server.auth.surfaces import GRPC, HTTP
from tasuki.server.auth.tenant import TENANT_KEY
from tasuki.server.errors import CallContext
from tasuki.server.http.request_ids import REQUEST_ID_HEADER, http_request_id
from tasuki.server.responses.routes import CANCEL_PATH, INPUT_ITEMS_PATH, STORED_PATH, STORED_ROUTE

_METADATA = frozenset({"authorization", TENANT_KEY, TRACE_HEADER})
"""What this node reads."""

_OWN_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "upgrade", "date", "server"),
        REQUEST_ID_HEADER,
    }
)
"""Of one connection, or written anew."""


_HANDED_ON = frozenset({"/", "/metrics", STORED_PATH, INPUT_ITEMS_PATH, CANCEL_PATH})
_PATTERN = {"/page/{name}": "/page/{name:.+}", STORED_PATH: STORED_ROUTE}
"""Where a path is not its own route's pattern."""
_ROUTE = {"GET": web.get, "DELETE": web.delete, "POST": web.post}


class GrpcForwarding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Hands on every call of a method that this node serves, but for the worker's own."""

    def __init__(self, channel: grpc.aio.Channel, own: frozenset[str]) -> None:
        """channel: to the registry. own: full names of methods."""
        self._channel = channel
        self._own = own

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method in self._own or method.startswith("/grpc.") or method not in GRPC:
            return await continuation(handler_call_details)
        # On the wire a call with one answer is a stream of one message.
        return grpc.unary_stream_rpc_method_handler(partial(self._forward, method))

    async def _forward(self, method: str, request: bytes, context: CallContext) -> None:
        metadata = [
            (name, value)
            for name, value in context.invocation_metadata() or ()
            if name in _METADATA
        ]
        call = self._channel.unary_stream(method, None, None)(
            request, metadata=metadata, timeout=context.time_remaining()
        )
        try:
            await context.send_initial_metadata(tuple(await call.initial_metadata()))
            async for message in call:
                await context.write(message)
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            trailer: Any = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", trailer)
        finally:
            call.cancel()


class HttpForwarding:
    """Build it inside a running event loop."""

    def __init__(self, path: str) -> None:
        """path: of the registry's Unix socket."""
        self._session = ClientSession(
            connector=UnixConnector(path, limit=0),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    def routes(self) -> list[web.RouteDef]:
        """The page, its data, metrics, and responses that are stored."""
        return [
            _ROUTE[method](_PATTERN.get(path, path), self._forward)
            for method, path in HTTP
            if path in _HANDED_ON or path.startswith(("/page/", "/debug/"))
        ]

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = CIMultiDict(request.headers)
        headers[REQUEST_ID_HEADER] = http_request_id(request)
        # Its Host names the node; the registry is reached by the socket alone.
        url = URL(f"http://node{request.raw_path}", encoded=True)
        async with self._session.request(
            request.method, url, headers=headers, allow_redirects=False
        ) as answer:
            kept = CIMultiDict(
                (name, value)
                for name, value in answer.headers.items()
                if name.lower() not in _OWN_HEADERS
            )
            reply = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept)
            await reply.prepare(request)
            async for part in answer.content.iter_any():
                await reply.write(part)
            await reply.write_eof()
        return reply

"""Checks of each gRPC call before its method: keys, typed errors, unserved methods.

RequireScope checks the caller's scope by the method's name (auth/surfaces.py), before the message
is read. A key is never logged.

MalformedRequests ends a call with the status of the ServerError raised by its method. It answers
unreadable bytes with INVALID_ARGUMENT. gRPC itself reports both as a crash of the method, with a
traceback. Reads no message's fields.

UnimplementedMethods rejects known methods without a service on this node. Unlike gRPC's own
refusal, it names the fix. unimplemented_routes() does the same for HTTP paths on a node without
callers. Both use only names.

One event loop's thread.
"""

import inspect
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from aiohttp import web
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tasuki.engine.messages import Targets
from tasuki.server.auth.callers import OWNER, ApiKeys, Caller
from tasuki.server.auth.surfaces import GRPC, Unscoped, denial, suffices
from tasuki.server.auth.tenants import (
    TENANT_KEY,
    TRACE_HEADER,
    RequestContext,
    WatchScope,
    tenant_of,
    watch_scope,
)
from tasuki.server.errors import (
    CallContext,
    Failed,
    InvalidApiKey,
    InvalidRequest,
    NotServedHere,
    ServerError,
    refusals,
)
from tasuki.server.request_checks import read_targets

Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
"""The next step of an interceptor. Returns the handler of a call, as found by gRPC's own server."""

Method: TypeAlias = Callable[..., Awaitable[Any]]
"""A servicer's method with one response."""

ReadMessage: TypeAlias = Callable[[bytes], Any]
"""A function for parsing a message from its bytes. Raises DecodeError."""


class MalformedRequests(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor for unreadable messages and typed errors. It wraps unary and async-generator
    methods. Other methods (reflection) stay unchanged."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        method, build = method_of(handler)
        if inspect.isasyncgenfunction(method):
            guarded = _guarded_generator(method, handler.request_streaming, self._failed)
        elif inspect.iscoroutinefunction(method):
            guarded = _guarded_coroutine(method, handler.request_streaming, self._failed)
        elif handler.unary_unary is not None:
            # A method missing in the servicer is a plain function of its stub: it only rejects the
            # call.
            guarded = _guarded_coroutine(_awaitable(method), False, self._failed)
        else:
            return handler
        return build(
            guarded,
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


class _Malformed:
    """A placeholder for a request message with unreadable bytes."""

    def __init__(self, reason: str) -> None:
        self.error = InvalidRequest(f"the request is not the expected message: {reason}")


def refusing(error: ServerError, failed: Failed) -> Any:
    """Return a handler to end every call with `error`. It reads no request message. failed: counts
    the call by the error's kind."""

    async def refuse(request: Any, context: CallContext) -> None:
        async with refusals(context, failed):
            raise error

    return grpc.stream_stream_rpc_method_handler(refuse)


def method_of(handler: Any) -> tuple[Any, Any]:
    """Return the servicer's method in the handler, and the gRPC function to make a handler of the
    same kind."""
    if handler.request_streaming and handler.response_streaming:
        return handler.stream_stream, grpc.stream_stream_rpc_method_handler
    if handler.request_streaming:
        return handler.stream_unary, grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return handler.unary_stream, grpc.unary_stream_rpc_method_handler
    return handler.unary_unary, grpc.unary_unary_rpc_method_handler


def _awaitable(method: Any) -> Method:
    async def call(request: Any, context: CallContext) -> Any:
        try:
            return method(request, context)
        except NotImplementedError as error:
            raise NotServedHere("this method is not served here: leave it out") from error

    return call


def _tolerant(deserialize: ReadMessage) -> ReadMessage:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _guarded_coroutine(method: Method, streaming: bool, failed: Failed) -> Any:
    async def guarded(request: Any, context: CallContext) -> Any:
        async with refusals(context, failed):
            return await method(_checked(request, streaming), context)

    return guarded


def _guarded_generator(
    method: Callable[..., AsyncGenerator[Any, None]], streaming: bool, failed: Failed
) -> Any:
    async def guarded(request: Any, context: CallContext) -> AsyncIterator[Any]:
        async with (
            refusals(context, failed),
            aclosing(method(_checked(request, streaming), context)) as responses,
        ):
            async for response in responses:
                yield response

    return guarded


def _checked(request: Any, streaming: bool) -> Any:
    """Return the request or the stream of requests. streaming: the request is a stream. A malformed
    message raises InvalidRequest."""
    if streaming:
        return _checked_stream(request)
    if isinstance(request, _Malformed):
        raise request.error
    return request


async def _checked_stream(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if isinstance(request, _Malformed):
            raise request.error
        yield request


_AUTHORIZATION = "authorization"


def grpc_caller(keys: ApiKeys, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller | None:
    """Return the caller of the API key in the metadata, or the keyless caller; None without a known
    key."""
    return keys.caller([value for name, value in metadata or () if name == _AUTHORIZATION])


def patience_of(context: CallContext) -> float:
    """Return the seconds until the call's deadline; infinite without one."""
    left = context.time_remaining()
    return math.inf if left is None else left


def metadata_targets(context: CallContext) -> Targets:
    """Return the latency targets in the call's metadata, set by the caller or its proxy. Raises
    InvalidField."""
    return read_targets(lambda name: _values(context, name))


class RequireScope(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The check of a call's API key: its metadata needs `authorization: Bearer API_KEY` with a key
    of the method's scope. Open methods need none."""

    def __init__(self, keys: ApiKeys, failed: Failed) -> None:
        self._keys = keys
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        # A method of an unknown service keeps gRPC's own rejection.
        refusal = None if handler is None else self._refusal(handler_call_details)
        return handler if refusal is None else refusing(refusal, self._failed)

    def _refusal(self, details: grpc.HandlerCallDetails) -> ServerError | None:
        method = details.method
        caller = grpc_caller(self._keys, details.invocation_metadata)
        needs = GRPC.get(method, Unscoped.ANY_KEY)
        if not suffices(needs, caller):
            if caller is None:
                return InvalidApiKey(
                    "send this node's key as the metadata `authorization: Bearer KEY`"
                )
            return denial(method, needs, caller)
        if method not in GRPC:
            return NotServedHere(
                f"{method} is not served here: ask a node of that role and of the caller's version"
            )
        return None


def grpc_request_context(keys: ApiKeys, context: CallContext) -> RequestContext:
    """Return the call's RequestContext: its caller, tenant and trace. REQUIRES: the interceptor has
    admitted the call. Raises PermissionDenied, InvalidField."""
    caller = _caller(keys, context)
    traceparent = "".join(_values(context, TRACE_HEADER)[-1:])
    return RequestContext(caller, traceparent, tenant_of(caller, _values(context, TENANT_KEY)))


def grpc_watch_scope(keys: ApiKeys, context: CallContext) -> WatchScope:
    """Return the scope of the cache blocks visible to a subscriber. Raises PermissionDenied,
    InvalidField."""
    return watch_scope(_caller(keys, context), _values(context, TENANT_KEY))


def named_tenant(context: CallContext) -> str | None:
    """Return the tenant named in an operator's call; None: the call names none. Raises
    InvalidField."""
    return tenant_of(OWNER, _values(context, TENANT_KEY))


def _caller(keys: ApiKeys, context: CallContext) -> Caller:
    caller = grpc_caller(keys, context.invocation_metadata())
    assert caller is not None
    return caller


def _values(context: CallContext, name: str) -> list[str]:
    """Return the metadata's values under `name`, as text. gRPC allows bytes only in names with the
    suffix -bin."""
    return [str(value) for key, value in context.invocation_metadata() or () if key == name]


_CLIENTS = "clients ask decode nodes, or `tasuki serve`"
_FIXES = {
    "/tasuki.v1.Inference/": _CLIENTS,
    "/tasuki.v1.Session/": _CLIENTS,
    "/tokenspeed.": "start this node with --gateway",
    "/tasuki.handover.": "name a prefill node with --prefill",
    "/tasuki.": "ask a node of that role and of the caller's version",
}


class UnimplementedMethods(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor to refuse calls of tasuki's methods not served by this node. Methods of
    foreign services keep gRPC's own refusal."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is not None or not method.startswith(tuple(_FIXES)):
            return handler

        fix = next(_FIXES[prefix] for prefix in _FIXES if method.startswith(prefix))
        return refusing(_unimplemented(method, fix), self._failed)


def unimplemented_routes() -> list[web.RouteDef]:
    """Return HTTP routes with OpenAI's paths, for a node without clients. Each rejects its requests
    with NotServedHere."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise _unimplemented(request.path, _CLIENTS)

    paths = ("/v1/{path:.*}", "/tokenize", "/detokenize", "/tokenizer_info")
    return [web.route("*", path, refuse) for path in paths]


def _unimplemented(what: str, fix: str) -> NotServedHere:
    return NotServedHere(f"{what} is not served here: {fix}")

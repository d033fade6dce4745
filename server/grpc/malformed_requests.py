"""Ends a call by the status of the ServerError that its method raises, and answers bytes that are
not the expected message with INVALID_ARGUMENT instead of UNKNOWN.

gRPC itself reports both as a crash of the method, with a traceback. Reads no message's fields.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tasuki.server.errors import (
    CallContext,
    InvalidRequest,
    NotServedHere,
    ServerError,
    refusals,
)

Failed = Callable[[str], None]


class MalformedRequests(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps unary and async-generator methods; leaves others (reflection) as they are."""

    def __init__(self, failed: Failed) -> None:
        """failed: counts a call by the kind of the error that ended it."""
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
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
            # What a servicer leaves out is its stub's plain function, which only refuses.
            guarded = _guarded_coroutine(_awaitable(method), False, self._failed)
        else:
            return handler
        return build(
            guarded,
            request_deserializer=_tolerant(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


class _Malformed:
    """Stands for a message that could not be read."""

    def __init__(self, reason: str) -> None:
        self.error = InvalidRequest(f"the request is not the expected message: {reason}")


def refusing(error: ServerError, failed: Failed) -> Any:
    """A handler that ends every call with the error; its messages stay bytes, and unread."""

    async def refuse(request: Any, context: CallContext) -> None:
        async with refusals(context, failed):
            raise error

    return grpc.stream_stream_rpc_method_handler(refuse)


def method_of(handler: Any) -> tuple[Any, Any]:
    """The servicer's method, and what builds a handler of its kind."""
    if handler.request_streaming and handler.response_streaming:
        return handler.stream_stream, grpc.stream_stream_rpc_method_handler
    if handler.request_streaming:
        return handler.stream_unary, grpc.stream_unary_rpc_method_handler
    if handler.response_streaming:
        return handler.unary_stream, grpc.unary_stream_rpc_method_handler
    return handler.unary_unary, grpc.unary_unary_rpc_method_handler


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    async def call(request: Any, context: CallContext) -> Any:
        try:
            return method(request, context)
        except NotImplementedError as error:
            raise NotServedHere("this method is not served here: leave it out") from error

    return call


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(str(error))

    return read


def _guarded_coroutine(
    method: Callable[..., Awaitable[Any]], streaming: bool, failed: Failed
) -> Any:
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
    """The request or request stream itself, but raising InvalidRequest at what was malformed."""
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

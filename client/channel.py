"""Channels to nodes, plain or TLS, and the two ways of calling over them.

Clients and sessions are written once, as coroutines over a Wire. AioWire awaits each call on an
event loop. BlockingWire blocks inside the call instead, so `run` ends such a coroutine without a
loop. A loop on a thread of its own is no substitute: gRPC's asyncio part does not survive fork().
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.tls import ClientTls

from .errors import ClientError, client_error

Result = TypeVar("Result")
Metadata = tuple[tuple[str, str], ...]

_OPTIONS = (
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.max_send_message_length", 32 * 2**20),
    ("grpc.keepalive_time_ms", 20_000),
    # A restarting node is back in seconds; gRPC's own backoff grows to two minutes.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def open_channel(target: str, tls: ClientTls | None) -> grpc.Channel:
    """Open a gRPC channel. target: HOST:PORT. tls: TLS files; None: plain text. Raises TlsError."""
    if tls is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    return grpc.secure_channel(target, tls.grpc_credentials(), options=_OPTIONS)


def open_async_channel(target: str, tls: ClientTls | None) -> grpc.aio.Channel:
    """Open a channel for asyncio. Arguments and errors are those of open_channel."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, tls.grpc_credentials(), options=_OPTIONS)


def bearing(channel: grpc.Channel, api_key: str) -> grpc.Channel:
    """Return the channel with the metadata `authorization: Bearer API_KEY` on each call."""
    return grpc.intercept_channel(channel, _Bearer(api_key))


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    # Not gRPC's own call credentials: they reject plain channels, used on loopback.
    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        # gRPC's details are a named tuple.
        metadata = [*(details.metadata or ()), self._entry]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_stream = intercept_unary_unary  # type: ignore[assignment]


class ResponseStream(ABC):
    """The responses of one streaming call."""

    def __init__(self, call: Any) -> None:
        """Wrap a streaming call. call: gRPC's call object, blocking or asyncio's."""
        self._call = call

    @abstractmethod
    async def read(self) -> Any:
        """Return the next response of the streaming call, or None at its end. Raises
        ClientError."""

    def cancel(self) -> None:
        """End the streaming call on both sides."""
        self._call.cancel()


@dataclass(frozen=True)
class Stubs:
    """The gRPC stubs of one node's services."""

    inference: Any
    session: Any
    admin: Any


class Wire(ABC):
    """Open gRPC channels to the nodes of one client, and the calls over them."""

    def __init__(self, channels: Mapping[str, Any], api_key: str) -> None:
        """Set up the calls over open channels. channels: channels by the node's address; a single
        channel has the empty name. api_key: key for all calls; empty: none."""
        self.channels = channels
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._stubs = {node: _stubs(channel) for node, channel in channels.items()}

    def stubs(self, node: str = "") -> Stubs:
        """Return the gRPC stubs of the node at this address."""
        return self._stubs[node]

    @abstractmethod
    async def call(self, method: Any, request: Any, seconds: float | None = None) -> Any:
        """Make a unary call and return its response. method: the stub's method. Raises ClientError.

        seconds: timeout; None: no timeout.
        """

    @abstractmethod
    def stream(self, method: Any, request: Any, metadata: Metadata = ()) -> ResponseStream:
        """Begin a streaming call, and return its responses to be read. method: the stub's method.
        Raises ClientError."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`, blocking or awaited like the calls."""

    @abstractmethod
    async def close(self) -> None:
        """Close the channels. Calls in flight fail."""


def _stubs(channel: Any) -> Stubs:
    inference: Any = pb_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
    session: Any = pb_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]
    admin: Any = pb_grpc.CacheAdminStub(channel)  # type: ignore[no-untyped-call]
    return Stubs(inference, session, admin)


class AioWire(Wire):
    """A wire (channels to nodes) with awaited calls. REQUIRES: one running event loop."""

    async def call(self, method: Any, request: Any, seconds: float | None = None) -> Any:
        try:
            return await method(request, metadata=self._metadata, timeout=seconds)
        except grpc.RpcError as error:
            raise client_error(error) from error

    def stream(self, method: Any, request: Any, metadata: Metadata = ()) -> ResponseStream:
        return _AioStream(method(request, metadata=(*self._metadata, *metadata)))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        for channel in self.channels.values():
            await channel.close(None)


class _AioStream(ResponseStream):
    async def read(self) -> Any:
        try:
            return await anext(aiter(self._call), None)
        except grpc.RpcError as error:
            raise client_error(error) from error


class BlockingWire(Wire):
    """A wire (channels to nodes) with blocking calls. It never suspends a coroutine. Any thread may
    use it."""

    async def call(self, method: Any, request: Any, seconds: float | None = None) -> Any:
        with _typed_errors():
            return method(request, metadata=self._metadata, timeout=seconds)

    def stream(self, method: Any, request: Any, metadata: Metadata = ()) -> ResponseStream:
        with _typed_errors():
            return _BlockingStream(method(request, metadata=(*self._metadata, *metadata)))

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        for channel in self.channels.values():
            channel.close()


class _BlockingStream(ResponseStream):
    async def read(self) -> Any:
        try:
            return next(self._call, None)
        except grpc.RpcError as error:
            raise client_error(error) from error


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise client_error(error) from error
    except ValueError as error:
        # gRPC raises this error for a closed channel.
        message = f"{error}; this client was closed: open another"
        raise ClientError(message, grpc.StatusCode.FAILED_PRECONDITION, None) from error


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine over a BlockingWire to its end on this thread, without an event loop. Return
    its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over a BlockingWire was suspended")

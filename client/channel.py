"""A channel to a node: plain or TLS, with the API key on every call where there is one."""

from collections.abc import Callable
from typing import Any

import grpc

from tasuki.utils.tls import ClientTls

_OPTIONS = (
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.max_send_message_length", 32 * 2**20),
    ("grpc.keepalive_time_ms", 20_000),
    # A node that restarts is back in seconds; gRPC's own backoff grows to two minutes.
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def open_channel(target: str, tls: ClientTls | None) -> grpc.Channel:
    """target: HOST:PORT. Raises TlsError."""
    if tls is None:
        return grpc.insecure_channel(target, options=_OPTIONS)
    return grpc.secure_channel(target, tls.grpc_credentials(), options=_OPTIONS)


def open_async_channel(target: str, tls: ClientTls | None) -> grpc.aio.Channel:
    """The same for asyncio."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, tls.grpc_credentials(), options=_OPTIONS)


def bearing(channel: grpc.Channel, api_key: str) -> grpc.Channel:
    """The same channel, each call with `authorization: Bearer API_KEY`."""
    return grpc.intercept_channel(channel, _Bearer(api_key))


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[type-arg]
    # gRPC's own call credentials refuse plain channels, which loopback uses.
    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        # gRPC's details are a named tuple.
        metadata = [*(details.metadata or ()), self._entry]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_stream = intercept_unary_unary  # type: ignore[assignment]

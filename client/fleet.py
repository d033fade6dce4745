"""Sessions over several decode nodes: Fleet with blocking calls, AsyncFleet awaited.

moving_session.py has the rules, decode_nodes.py which nodes are asked.
"""

from collections.abc import Sequence

import grpc

from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.tls import ClientTls

from . import aio, session
from .channel import bearing, open_async_channel, open_channel
from .conversation import Conversation
from .decode_nodes import DecodeNodes
from .moving_session import MovingSession, SessionTargets
from .retry import RetryPolicy

ANY = SessionTargets()


class Fleet:
    """A channel to each decode node. Any thread may use it. Raises ClientError."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """targets: HOST:PORT of each, of one model and one set of keys. Otherwise as Client.
        Raises TlsError, and ValueError where there is no target, or one twice."""
        self._nodes = DecodeNodes(targets)
        self._retry = retry or RetryPolicy()
        self._channels = [open_channel(node, tls) for node in self._nodes.addresses]
        borne = [bearing(channel, api_key) if api_key else channel for channel in self._channels]
        stubs = [pb_grpc.SessionStub(channel) for channel in borne]  # type: ignore[no-untyped-call]
        self._stubs = dict(zip(self._nodes.addresses, stubs, strict=True))

    def open_session(
        self, cache_salt: bytes = b"", targets: SessionTargets = ANY
    ) -> session.Session:
        """On the better of two nodes; it moves where that refuses it, dies, or misses a target."""
        life = MovingSession(Conversation(cache_salt), self._retry, self._nodes, targets)
        return session.opened(life, self._stubs.__getitem__)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFleet:
    """As Fleet, on one event loop. Raises ClientError."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """As Fleet. REQUIRES: a running event loop."""
        self._nodes = DecodeNodes(targets)
        self._retry = retry or RetryPolicy()
        self._channels: list[grpc.aio.Channel] = [
            open_async_channel(node, tls) for node in self._nodes.addresses
        ]
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        stubs = [pb_grpc.SessionStub(channel) for channel in self._channels]  # type: ignore[no-untyped-call]
        self._stubs = dict(zip(self._nodes.addresses, stubs, strict=True))

    async def open_session(
        self, cache_salt: bytes = b"", targets: SessionTargets = ANY
    ) -> aio.AsyncSession:
        """As Fleet.open_session."""
        life = MovingSession(Conversation(cache_salt), self._retry, self._nodes, targets)
        return await aio.opened(life, self._stubs.__getitem__, self._metadata)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    async def __aenter__(self) -> "AsyncFleet":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

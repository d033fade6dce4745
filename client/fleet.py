"""Sessions over several decode nodes: Fleet with blocking calls, AsyncFleet with awaited calls.

moving_session.py has the rules and the choice of nodes.
"""

from collections.abc import Sequence
from typing import Self

from tasuki.utils.tls import ClientTls

from .aio import AsyncSession, opened
from .channel import AioWire, BlockingWire, Wire, open_async_channel, open_channel, run
from .errors import RetryPolicy
from .moving_session import DecodeNodes, MovingSession, SessionTargets
from .session import Session
from .session_protocol import Conversation

ANY = SessionTargets()


class FleetCalls:
    """The placement of sessions on a fleet's nodes, over blocking or awaited connections. Raises
    ClientError."""

    def __init__(self, nodes: DecodeNodes, wire: Wire, retry: RetryPolicy | None) -> None:
        self._nodes = nodes
        self._wire = wire
        self._retry = retry or RetryPolicy()

    async def open_session(
        self, cache_salt: bytes = b"", targets: SessionTargets = ANY
    ) -> AsyncSession:
        """Open a session on the better of two nodes. The session moves if its node rejects it,
        dies, or misses a latency target. cache_salt: see Client.open_session. targets: latency
        targets of the session."""
        life = MovingSession(Conversation(cache_salt), self._retry, self._nodes, targets)
        return await opened(life, self._wire)

    async def close(self) -> None:
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Fleet:
    """A client of several decode nodes, with a channel to each. Any thread may use it. Raises
    ClientError."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """Open the channels. targets: HOST:PORT of each node; all have the same model and keys.
        Other arguments are Client's. Raises TlsError, and ValueError for an empty list or a
        repeated target."""
        nodes = DecodeNodes(targets)
        channels = {node: open_channel(node, tls) for node in nodes.addresses}
        self._calls = FleetCalls(nodes, BlockingWire(channels, api_key), retry)

    def open_session(self, cache_salt: bytes = b"", targets: SessionTargets = ANY) -> Session:
        """Open a session on the better of two nodes. The session moves if its node rejects it,
        dies, or misses a latency target. cache_salt: see Client.open_session. targets: latency
        targets of the session."""
        return Session(run(self._calls.open_session(cache_salt, targets)))

    def close(self) -> None:
        run(self._calls.close())

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncFleet(FleetCalls):
    """A Fleet for asyncio: its calls are awaited on one event loop. Raises ClientError."""

    def __init__(
        self,
        targets: Sequence[str],
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """Open the channels. Arguments are those of Fleet. REQUIRES: a running event loop."""
        nodes = DecodeNodes(targets)
        channels = {node: open_async_channel(node, tls) for node in nodes.addresses}
        super().__init__(nodes, AioWire(channels, api_key), retry)

"""Opening and closing endpoints to a peer within a time, whatever the transport does meanwhile.

Keeps nothing. Thread rule: the event loop; the transport's part runs in a thread of its own.
Invariant: an endpoint that comes too late, or for somebody who has left, is let go of.
"""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

from tasuki.transfer.errors import TransportError
from tasuki.transfer.node_identity import NodeIdentity

from .sender import Sender

_POLL_SECONDS = 0.01


async def connect_within(
    seconds: float, sender: Sender, name: str, node: NodeIdentity, asked_at: float | None = None
) -> None:
    """As Sender.connect. Raises TransportError, also after `seconds`."""
    connecting = asyncio.ensure_future(
        asyncio.to_thread(sender.connect, name, node.arenas, asked_at)
    )
    in_time = False
    try:
        await asyncio.wait({connecting}, timeout=seconds)
        in_time = connecting.done()
    finally:
        if not in_time:
            connecting.add_done_callback(partial(_let_go, sender, name))
    if not in_time:
        raise TransportError(f"no endpoint to node {node.name} within {seconds} s")
    connecting.result()


def _let_go(sender: Sender, name: str, connecting: "asyncio.Future[None]") -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        sender.disconnect(name)


async def disconnected_within(seconds: float, sender: Sender, names: Iterable[str]) -> None:
    """Until none of these peers has an open endpoint, or `seconds` are over. Transports share what
    leads to one process: a new endpoint must not inherit a broken part of an old one's."""
    known = list(names)
    deadline = time.monotonic() + seconds
    while any(map(sender.has_endpoint, known)) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)

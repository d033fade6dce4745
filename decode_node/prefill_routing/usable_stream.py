"""Follows what one prefill node can resume prompts from, as long as its connection lives.

Thread rule: the hand-over's event loop. Invariants: whatever the node sends costs this loop a
bounded share of its time and that node's entries at most; a stream that broke or made no sense is
opened again, which begins with a snapshot, at growing intervals.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from tasuki.decode_node.prefill_link import PrefillConnection
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid

from .usable_index import UsableIndex

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
_LEAST_BETWEEN = 0.01
_PREFIXES_A_SECOND = 100_000
"""A prefix costs this loop about 2 us."""


@contextmanager
def following(connection: PrefillConnection, index: UsableIndex, number: int) -> Iterator[None]:
    """Inside `with`, the index has what the node holds. number: the node's in the index."""
    task = asyncio.create_task(_follow_always(connection, index, number), name="usable")
    try:
        yield
    finally:
        task.cancel()


async def _follow_always(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Until cancelled."""
    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            await _follow(connection, index, number)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            log.debug("prefill node %s: what is usable: %r", connection.node.name, error)
        except PeerInvalid as error:
            log.warning("prefill node %s: %s", connection.node.name, error)
        except Exception:
            log.exception("what prefill node %s holds could not be read", connection.node.name)
        index.start_over(number)
        if time.monotonic() - began > _LAST_PAUSE:
            pause = _FIRST_PAUSE
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


async def _follow(connection: PrefillConnection, index: UsableIndex, number: int) -> None:
    """Until the stream ends. Raises PeerInvalid, AioRpcError."""
    call = connection.stub.Usable(pb.UsableRequest(connection_id=connection.id))
    try:
        while isinstance(batch := await call.read(), pb.UsableBatch):
            prefixes = index.apply(number, batch, time.monotonic())
            await asyncio.sleep(max(_LEAST_BETWEEN, prefixes / _PREFIXES_A_SECOND))
    finally:
        call.cancel()

"""tasuki.v1.CacheAdmin: what an operator asks of the cache."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from ..proto import inference_pb2 as pb
from ..proto import inference_pb2_grpc as pb_grpc
from .engine_client import EngineClient
from .errors import CallContext, refusals
from .handover_status import HandoverStatus, HandoverStatusSource
from .session_store import SessionStore
from .watch_messages import parts_of

# How often an idle watch asks the engine again: a router may be so far behind.
_POLL_SECONDS = 0.05


class AdminService(pb_grpc.CacheAdminServicer):
    """Knows counters only. Lives on the event loop's thread. A prefill node has no sessions:
    store None. `handover`: what a decode node tells of its prefill nodes."""

    def __init__(
        self,
        engine: EngineClient,
        store: SessionStore | None,
        handover: HandoverStatusSource = HandoverStatus,
    ) -> None:
        self._engine = engine
        self._store = store
        self._handover = handover

    async def Stats(self, request: pb.StatsRequest, context: CallContext) -> pb.StatsResponse:
        async with refusals(context):
            stats = await self._engine.stats()
        handover = self._handover()
        return pb.StatsResponse(
            pages=stats.pages,
            slots=stats.slots,
            slabs=stats.slabs,
            tree=stats.tree,
            lost=stats.lost,
            requests=stats.requests,
            integrity=stats.integrity,
            sessions=0 if self._store is None else len(self._store),
            prefill_nodes=[node.message() for node in handover.prefill_nodes],
            windows=handover.windows,
        )

    async def Flush(self, request: pb.FlushRequest, context: CallContext) -> pb.FlushResponse:
        async with refusals(context):
            dropped = await self._engine.flush()
        return pb.FlushResponse(dropped=dropped)

    async def Drain(self, request: pb.DrainRequest, context: CallContext) -> pb.DrainResponse:
        async with refusals(context):
            await self._engine.drain()
        return pb.DrainResponse()

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        every = request.stream == pb.WatchEventsRequest.ALL
        async with (
            refusals(context),
            aclosing(self._engine.watch("all" if every else "usable", _POLL_SECONDS)) as batches,
        ):
            async for batch in batches:
                for part in parts_of(batch):
                    yield part

"""tasuki.v1.CacheAdmin: an operator's calls about the cache and the node."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from tasuki.engine.messages import Rejected
from tasuki.engine.messages.proto import eviction_to_proto, finished_to_proto
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.api_keys import NO_KEYS, ApiKeys
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import CallContext, RoleFixed, UnknownNode
from tasuki.server.grpc.auth import grpc_request_context, named_tenant
from tasuki.server.grpc.cache_messages import parts_of, tree_message, tree_question
from tasuki.server.role_change import RoleChange
from tasuki.server.sessions.session_store import SessionStore
from tasuki.transfer.liveness.link_status import HandoverStatus, HandoverStatusSource
from tasuki.transfer.protocol.messages import timeline_to_wire

# How often an idle watch polls the engine: a router lags by at most that.
_POLL_SECONDS = 0.05

_ROLE_NUMBERS = {"prefill": pb.NODE_ROLE_PREFILL, "decode": pb.NODE_ROLE_DECODE}


class AdminService(pb_grpc.CacheAdminServicer):
    """Lives on the event loop's thread. store: None on a prefill node, which has no sessions.
    handover: the state of a decode node's prefill nodes. role_change: None where the node has both
    roles. keys: identify the caller, who may explain its own requests only."""

    def __init__(
        self,
        engine: EngineClient,
        store: SessionStore | None,
        handover: HandoverStatusSource = HandoverStatus,
        role_change: RoleChange | None = None,
        keys: ApiKeys = NO_KEYS,
    ) -> None:
        self._keys = keys
        self._engine = engine
        self._store = store
        self._handover = handover
        self._role_change = role_change

    async def Stats(self, request: pb.StatsRequest, context: CallContext) -> pb.StatsResponse:
        stats = await self._engine.stats()
        handover = self._handover()
        return pb.StatsResponse(
            pages=stats.pages,
            slots=stats.slots,
            slabs=stats.slabs,
            tree=stats.tree,
            lost=stats.lost,
            requests={phase.value: count for phase, count in stats.requests.items()},
            integrity=stats.integrity,
            sessions=0 if self._store is None else len(self._store),
            prefill_nodes=[node.message() for node in handover.prefill_nodes],
            windows=handover.windows,
            http_address=self._engine.http_address,
            role=None if self._role_change is None else _ROLE_NUMBERS[self._role_change.role],
        )

    async def Explain(self, request: pb.ExplainRequest, context: CallContext) -> pb.ExplainResponse:
        story = self._engine.story(request.request_id, grpc_request_context(self._keys, context))
        end = story.end
        response = pb.ExplainResponse(
            request_id=request.request_id, ended_seconds_ago=story.seconds_ago
        )
        if isinstance(end, Rejected):
            response.rejected = end.error.message
        else:
            response.finished.CopyFrom(finished_to_proto(end))
            response.life.extend(
                pb.LifeMark(state=mark.state.value, at_seconds=mark.at) for mark in end.life
            )
            response.took.extend(eviction_to_proto(eviction) for eviction in story.took)
            transfer = end.usage.transfer
            if transfer is not None and transfer.timeline is not None:
                response.handover.CopyFrom(timeline_to_wire(transfer.timeline))
            pulled = end.usage.pulled
            if pulled is not None and pulled.timeline is not None:
                response.pull.CopyFrom(timeline_to_wire(pulled.timeline))
        return response

    async def Tree(self, request: pb.TreeRequest, context: CallContext) -> pb.TreeResponse:
        view = await self._engine.tree(*tree_question(request, named_tenant(context)))
        if view is None:
            raise UnknownNode(
                "the tree holds nothing there any more: ask from the top, without under or prefix"
            )
        return tree_message(view)

    async def ChangeRole(
        self, request: pb.ChangeRoleRequest, context: CallContext
    ) -> pb.ChangeRoleResponse:
        if self._role_change is None:
            raise RoleFixed(
                "this node both prefills and decodes (tasuki serve), so it has no role to "
                "change: start tasuki prefill or tasuki decode in its place"
            )
        names = {number: name for name, number in _ROLE_NUMBERS.items()}
        self._role_change.ask(names.get(request.role, ""), request.settings)
        return pb.ChangeRoleResponse()

    async def Flush(self, request: pb.FlushRequest, context: CallContext) -> pb.FlushResponse:
        dropped = await self._engine.flush()
        return pb.FlushResponse(dropped=dropped)

    async def Drain(self, request: pb.DrainRequest, context: CallContext) -> pb.DrainResponse:
        await self._engine.drain()
        return pb.DrainResponse()

    async def Undrain(self, request: pb.UndrainRequest, context: CallContext) -> pb.UndrainResponse:
        self._engine.undrain()
        return pb.UndrainResponse()

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        await context.send_initial_metadata(())
        every = request.stream == pb.WatchEventsRequest.STREAM_ALL
        caller = grpc_request_context(self._keys, context).caller
        events = self._engine.watch("all" if every else "usable", _POLL_SECONDS, caller)
        async with aclosing(events) as batches:
            async for batch in batches:
                for part in parts_of(batch):
                    yield part

"""The gRPC services over one engine: tasuki.v1.Inference, tasuki.v1.CacheAdmin, and their list.

InferenceService: One-shot requests, each with its whole prompt.

AdminService: An operator's calls about the cache and the node.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from tasuki.engine.messages import PromptScored, Rejected, Submit
from tasuki.engine.messages.proto import EVICTION, FINISHED
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.callers import NO_KEYS, ApiKeys
from tasuki.server.auth.limits import HeldBytes, Hold, score_bytes, submit_bytes
from tasuki.server.auth.tenants import salt_of
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import Answering, EngineClient
from tasuki.server.errors import CallContext, InvalidRequest, RoleFixed, UnknownNode
from tasuki.server.pictures.node_pictures import Pictures
from tasuki.server.request_checks import checked_prediction, forks_of, read_request_id
from tasuki.server.role_change import RoleChange
from tasuki.server.sessions import SessionStore
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.unread_answer import AnswerPart
from tasuki.transfer.control.link_status import HandoverStatus, HandoverStatusSource
from tasuki.transfer.protocol.messages import TIMELINE
from tasuki.utils.loops import together

from .cache_messages import parts_of, tree_message, tree_question
from .generate_messages import (
    REQUEST_ID_KEY,
    read_choices,
    read_prompt,
    read_sampling,
    read_targets,
    with_text_rules,
    write_tokens,
)
from .interceptors import grpc_request_context, metadata_targets, named_tenant, patience_of
from .server import Service
from .session_service import SessionService


class InferenceService(pb_grpc.InferenceServicer):
    """The service tasuki.v1.Inference: requests with their whole prompt, without sessions. On the
    event loop's thread."""

    def __init__(
        self,
        engine: Answering,
        codec: TextCodec,
        keys: ApiKeys = NO_KEYS,
        held: HeldBytes | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        """Set up the service. keys: API keys of the callers. A call counts against its caller's
        limits. held: counts the bytes of memory held by calls; None: a new count. pictures: reads
        those of messages; None: they are refused."""
        self._keys = keys
        self._pictures = pictures
        self._held = HeldBytes() if held is None else held
        self._engine = engine
        self._codec = codec

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        with self._engine.calls.one():
            await self._counted(request, context)

    async def _counted(self, request: pb.GenerateRequest, context: CallContext) -> None:
        """Answer the call and count its memory. gRPC has read the request message already. The
        message stays in memory until the call's end."""
        caller = grpc_request_context(self._keys, context).caller
        with self._held.hold(caller, request.ByteSize()) as hold:
            await self._generate(request, context, hold)

    async def _generate(
        self, request: pb.GenerateRequest, context: CallContext, hold: Hold
    ) -> None:
        request_id = read_request_id(request.request_id)
        # Send the headers now: gateways give up a stream if its headers wait for the first token.
        await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))
        request_context = grpc_request_context(self._keys, context)
        await self._engine.admit(request_context.caller)
        salt = salt_of(request_context.tenant, request.cache_salt)
        prompt = await self._codec.work.run(
            request_context.line,
            partial(read_prompt, request, salt, self._codec, self._pictures),
            hold.size,
        )
        sampling = read_sampling(request.sampling, self._codec, least_new_tokens=0)
        sampling = await with_text_rules(
            sampling, request.sampling, prompt.tokens, self._codec, request_context.line
        )
        choices = range(read_choices(request))
        asks_scores = request.HasField("prompt_logprobs")
        submit = Submit(
            request_id=request_id,
            prompt=prompt.tokens,
            sampling=sampling,
            salt=salt,
            marks=prompt.marks,
            message_end=prompt.message_end,
            priority=request.priority,
            patience=patience_of(context),
            targets=read_targets(request.targets).or_else(metadata_targets(context)),
            prompt_logprobs=request.prompt_logprobs if asks_scores else None,
            forks=forks_of(request_id, choices, sampling.seed),
            prediction=checked_prediction(request.prediction, self._codec),
            pictures=prompt.pictures,
        )
        hold.grow(submit_bytes(submit) + score_bytes(submit))
        scores: list[PromptScored] = []
        taken = [scores.append if asks_scores else None]
        writing = asyncio.Lock()

        async def answer(choice: int, parts: AsyncGenerator[AnswerPart, None]) -> None:
            async def write(response: pb.GenerateResponse) -> None:
                response.choice = choice
                # gRPC takes one message at a time.
                async with writing:
                    await context.write(response)

            detokenizer = self._codec.detokenizer()
            shown = () if choice else scores
            await write((await write_tokens(parts, write, detokenizer, shown)).finished)

        sinks = [None for _ in choices]
        asking = self._engine.generate_all([submit], request_context, sinks, taken)
        async with asking as answers:
            await together([answer(*pair) for pair in enumerate(answers)])

    async def Abort(self, request: pb.AbortRequest, context: CallContext) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequest("request_id is empty: name the request to abort")
        caller = grpc_request_context(self._keys, context).caller
        self._engine.abort(read_request_id(request.request_id), caller)
        return pb.AbortResponse()


# Seconds between two polls of the engine by an idle watch, and so the longest lag of a router.
_POLL_SECONDS = 0.05

_ROLE_NUMBERS = {"prefill": pb.NODE_ROLE_PREFILL, "decode": pb.NODE_ROLE_DECODE}


class AdminService(pb_grpc.CacheAdminServicer):
    """The service CacheAdmin. On the event loop's thread. store: session store; None on a prefill
    node, because it has no sessions. handover: status of a decode node's prefill nodes.
    role_change: None if the node has both roles. keys: API keys of the callers; a caller may
    explain only its own requests."""

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
            request_id=request.request_id,
            ended_seconds_ago=story.seconds_ago,
            part_bytes=(await self._engine.stats()).part_bytes,
        )
        if isinstance(end, Rejected):
            response.rejected = end.error.message
        else:
            response.finished.CopyFrom(FINISHED.to_wire(end))
            response.life.extend(
                pb.LifeMark(state=mark.state.value, at_seconds=mark.at) for mark in end.life
            )
            response.took.extend(map(EVICTION.to_wire, story.took))
            transfer = end.usage.transfer
            if transfer is not None and transfer.timeline is not None:
                response.handover.CopyFrom(TIMELINE.to_wire(transfer.timeline))
            pulled = end.usage.pulled
            if pulled is not None and pulled.timeline is not None:
                response.pull.CopyFrom(TIMELINE.to_wire(pulled.timeline))
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


def grpc_services(
    engine: EngineClient,
    codec: TextCodec,
    config: ServerConfig,
    handover: HandoverStatusSource = HandoverStatus,
    role_change: RoleChange | None = None,
    store: SessionStore | None = None,
    held: HeldBytes | None = None,
    pictures: Pictures | None = None,
) -> tuple[Service, ...]:
    """Return the services Inference, Session and CacheAdmin. handover, role_change: fields of
    AdminService. store: the sessions; None: a new store. held: counts the bytes of memory held by
    calls; None: a new count. pictures: reads those of messages; None: they are refused."""
    held = HeldBytes.for_messages(config.access.max_message_bytes) if held is None else held
    store = session_store(engine, config) if store is None else store
    keys = config.access.keys
    inference = InferenceService(engine, codec, keys, held, pictures)
    session = SessionService(engine, codec, store, keys, held, pictures)
    return (
        Service(
            "tasuki.v1.Inference",
            partial(pb_grpc.add_InferenceServicer_to_server, inference),
        ),
        Service(
            "tasuki.v1.Session",
            partial(pb_grpc.add_SessionServicer_to_server, session),
        ),
        admin_service(engine, config, store, handover, role_change),
    )


def session_store(engine: EngineClient, config: ServerConfig) -> SessionStore:
    return SessionStore(
        engine,
        time.monotonic,
        config.max_sessions,
        config.session_idle_seconds,
        config.key_sessions,
        config.session_pictures_mib * 2**20,
    )


def admin_service(
    engine: EngineClient,
    config: ServerConfig,
    store: SessionStore | None,
    handover: HandoverStatusSource = HandoverStatus,
    role_change: RoleChange | None = None,
) -> Service:
    """Return the service CacheAdmin alone. store: session store; None on a node without
    sessions."""
    admin = AdminService(engine, store, handover, role_change, config.access.keys)
    return Service("tasuki.v1.CacheAdmin", partial(pb_grpc.add_CacheAdminServicer_to_server, admin))

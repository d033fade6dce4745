"""A front worker: its links to the node, its servers, its forwarded calls, its end.

The registry decides when a worker ends. A worker ends with the node. A lost engine ends the worker
too, once its clients have their errors.

GrpcForwarding and HttpForwarding forward calls of the node's single services to the registry. They
return its answers unchanged. The registry has the same services and routes on Unix sockets
(NodeSockets) and identifies callers itself. Invariant: when a client leaves, its call ends at the
registry too.

One event loop's thread.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from aiohttp import ClientSession, ClientTimeout, UnixConnector, web
from multidict import CIMultiDict
from yarl import URL

from tasuki.engine.messages import PictureCounts
from tasuki.model.grammar.trials.client import DRAINS, GrammarTrials
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.anthropic.routes import message_routes
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.auth.surfaces import GRPC, HTTP
from tasuki.server.auth.tenants import TENANT_KEY, TRACE_HEADER
from tasuki.server.config import ServerConfig
from tasuki.server.drain import Rotation
from tasuki.server.errors import CallContext
from tasuki.server.grpc.interceptors import Continuation
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.grpc.services import InferenceService
from tasuki.server.grpc.session_service import TurnService
from tasuki.server.http.access import http_caller
from tasuki.server.http.bounded_reading import read_body
from tasuki.server.http.headers import REQUEST_ID_HEADER, http_request_id
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.server.openai.routes import model_routes, openai_routes, served_model
from tasuki.server.openai.weight_routes import PATHS
from tasuki.server.pictures.node_pictures import NodePictures, pictures_apart
from tasuki.server.responses.conversations import unserved_conversation_routes
from tasuki.server.responses.endpoints.routes import (
    CANCEL_PATH,
    INPUT_ITEMS_PATH,
    STORED_PATH,
    STORED_ROUTE,
    answering_routes,
)
from tasuki.server.text.text_codec import TextCodec
from tasuki.utils.logs import configure_logging
from tasuki.utils.program import is_expected, line_of
from tasuki.utils.signatures import Notice

from . import messages as w
from .links import EngineSocket, NodeSockets, RegistryLink, worker_frame
from .worker_client import AskedResponses, AskedSessions, WorkerClient

_METADATA = frozenset({"authorization", TENANT_KEY, TRACE_HEADER})
"""Keys of the gRPC metadata read by this node. A forwarded call keeps them."""

_OWN_HEADERS = frozenset(
    {
        *("connection", "keep-alive", "transfer-encoding", "upgrade", "date", "server"),
        REQUEST_ID_HEADER,
    }
)
"""HTTP headers of the registry's answer not returned to the client. They belong to one connection,
or are written anew."""


_HANDED_ON = frozenset({"/", "/metrics", STORED_PATH, INPUT_ITEMS_PATH, CANCEL_PATH, *PATHS})
_PATTERN = {"/page/{name}": "/page/{name:.+}", STORED_PATH: STORED_ROUTE}
"""Patterns of aiohttp's routes, by the path in the table of surfaces, if the two differ."""
_ROUTE = {"GET": web.get, "DELETE": web.delete, "POST": web.post}


class GrpcForwarding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor to forward every call of a method served by this node to the registry, except
    the worker's own methods."""

    def __init__(self, channel: grpc.aio.Channel, own: frozenset[str]) -> None:
        """Set up the forwarding. channel: gRPC channel to the registry. own: full names of the
        methods answered by the worker."""
        self._channel = channel
        self._own = own

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method in self._own or method.startswith("/grpc.") or method not in GRPC:
            return await continuation(handler_call_details)
        # On the wire a call with one answer is a stream of one message.
        return grpc.unary_stream_rpc_method_handler(partial(self._forward, method))

    async def _forward(self, method: str, request: bytes, context: CallContext) -> None:
        metadata = [
            (name, value)
            for name, value in context.invocation_metadata() or ()
            if name in _METADATA
        ]
        call = self._channel.unary_stream(method, None, None)(
            request, metadata=metadata, timeout=context.time_remaining()
        )
        try:
            await context.send_initial_metadata(tuple(await call.initial_metadata()))
            async for message in call:
                await context.write(message)
            context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        except grpc.aio.AioRpcError as error:
            trailer: Any = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", trailer)
        finally:
            call.cancel()


class HttpForwarding:
    """A forwarder of HTTP requests to the registry. Build it inside a running event loop."""

    def __init__(self, path: str, held: HeldBytes) -> None:
        """Set up the forwarding. path: path of the registry's Unix socket. held: counts the bytes
        of bodies."""
        self._held = held
        self._session = ClientSession(
            connector=UnixConnector(path, limit=0),
            timeout=ClientTimeout(total=None),
            auto_decompress=False,
        )

    async def close(self) -> None:
        await self._session.close()

    def routes(self) -> list[web.RouteDef]:
        """Return the forwarded routes: the page, its data, metrics, stored responses, and updates
        of weights."""
        return [
            _ROUTE[method](_PATTERN.get(path, path), self._forward)
            for method, path in HTTP
            if path in _HANDED_ON or path.startswith(("/page/", "/debug/"))
        ]

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        with self._held.hold(http_caller(request)) as hold:
            return await self._forward_with(request, await read_body(request, hold))

    async def _forward_with(self, request: web.Request, body: bytearray) -> web.StreamResponse:
        headers = CIMultiDict(request.headers)
        for name in ("Content-Length", "Transfer-Encoding", "Expect"):
            headers.popall(name, None)
        headers[REQUEST_ID_HEADER] = http_request_id(request)
        # Its Host names the node; the registry is reached through the socket alone.
        url = URL(f"http://node{request.raw_path}", encoded=True)
        async with self._session.request(
            request.method, url, headers=headers, data=bytes(body) or None, allow_redirects=False
        ) as answer:
            kept = CIMultiDict(
                (name, value)
                for name, value in answer.headers.items()
                if name.lower() not in _OWN_HEADERS
            )
            reply = web.StreamResponse(status=answer.status, reason=answer.reason, headers=kept)
            await reply.prepare(request)
            async for part in answer.content.iter_any():
                await reply.write(part)
            await reply.write_eof()
        return reply


log = logging.getLogger(__name__)

OWN_METHODS = frozenset(
    f"/tasuki.v1.{name}" for name in ("Inference/Generate", "Session/Append", "Session/Generate")
)
"""Full names of the gRPC methods answered by the worker itself. The registry answers the rest."""

_ADMIN = "tasuki.v1.CacheAdmin"
_GATEWAY = "tokenspeed.grpc.scheduler.TokenSpeedScheduler"

# From the end of the engine's socket to its reason, or to this worker's end.
_REASON_SECONDS = 5.0
_LAST_WRITES_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerJob:
    """The job of a front worker's process. number: the worker's number, never used by another
    worker. config: settings with the ports served by all workers. folder: the checkpoint's folder.
    vocab, max_position: sizes of its model, in tokens. max_request_tokens: the engine's limit of a
    request. trials: address of the node's trial server for grammars. sees_pictures: the engine has
    a vision tower."""

    number: int
    sockets: NodeSockets
    config: ServerConfig
    folder: str
    vocab: int
    max_position: int
    max_request_tokens: int
    trials: str
    sees_pictures: bool = False


def run_worker(job: WorkerJob, connection: socket.socket) -> int:
    """Run the worker's process and return its exit status. connection: socket to the registry."""
    configure_logging(job.config.log_format, job.config.log_level)
    try:
        return asyncio.run(_live(job, connection))
    except Exception as error:
        if not is_expected(error):
            log.exception("a front worker failed")
        connection.setblocking(True)
        connection.sendall(worker_frame([w.WorkerFailed(line_of(error))]))
        return 1


async def _live(job: WorkerJob, connection: socket.socket) -> int:
    worker = Worker(job)
    await worker.start(connection, _registry_gone)
    return await worker.ended()


class Worker:
    """A front worker: its links and its servers. Build it inside a running event loop."""

    def __init__(self, job: WorkerJob) -> None:
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[int] = self._loop.create_future()
        self._waits: asyncio.Task[None] | None = None
        self._rotation = Rotation()
        self._pictures: NodePictures | None = None
        self._registry: RegistryLink
        self._engine: EngineSocket
        self._client: WorkerClient
        self._server: Server
        self._http: HttpServer | None = None
        self._forwarding: HttpForwarding | None = None
        self._channel: grpc.aio.Channel

    async def start(self, connection: socket.socket, registry_gone: Notice) -> None:
        """Connect to the node, and serve clients. connection: socket to the registry.
        registry_gone: called when the connection has ended."""
        job, config = self._job, self._job.config
        codec = TextCodec.load(
            Path(job.folder),
            job.vocab,
            job.max_position,
            config.chat_cache_bytes,
            GrammarTrials(lambda: job.trials),
        )
        self._grammars = codec.grammars
        self._registry = await RegistryLink.over(connection, self._taken, registry_gone)
        self._engine = await EngineSocket.to(
            job.sockets.engine,
            job.number,
            lambda messages: self._client.take(messages),
            self._engine_gone,
        )
        self._client = WorkerClient(
            self._registry, self._engine.post, codec.chat_tokens, config.tokens_per_minute > 0
        )
        await self._serve(codec)
        self._registry.notify(w.WorkerStands())

    async def ended(self) -> int:
        """Wait until the worker was asked to end or must end, and its servers have ended. Return
        the worker's exit status."""
        status = await self._ending
        if self._http is not None:
            await self._http.drain()
        await self._server.drain(_LAST_WRITES_SECONDS)
        await self._channel.close(None)
        self._engine.close()
        await self._registry.end()
        if self._forwarding is not None:
            await self._forwarding.close()
        return status

    async def _serve(self, codec: TextCodec) -> None:
        job, config, client = self._job, self._job.config, self._client
        access = config.access
        access = replace(access, max_connections=-(-access.max_connections // config.front_workers))
        size = access.max_message_bytes
        self._channel = grpc.aio.insecure_channel(
            f"unix:{job.sockets.grpc}",
            options=(
                ("grpc.max_receive_message_length", size),
                ("grpc.max_send_message_length", size),
            ),
        )
        held = HeldBytes.for_messages(size)
        pictures = pictures_apart(job.folder) if job.sees_pictures else None
        self._pictures = pictures
        inference = InferenceService(client, codec, access.keys, held, pictures)
        sessions = AskedSessions(self._registry)
        turns = TurnService(client, codec, sessions, access.keys, held, pictures)
        forwarded = (_ADMIN, _GATEWAY) if config.gateway else (_ADMIN,)
        services = [
            Service(
                "tasuki.v1.Inference",
                partial(pb_grpc.add_InferenceServicer_to_server, inference),
            ),
            Service("tasuki.v1.Session", partial(pb_grpc.add_SessionServicer_to_server, turns)),
            *(Service(name, lambda server: None) for name in forwarded),
        ]
        forward = GrpcForwarding(self._channel, OWN_METHODS)
        self._server = await start_server(
            *(config.bind, services, access),
            forward=forward,
            calls=client.calls,
            shares_port=True,
            rotation=self._rotation,
        )
        if config.http_bind:
            held = HeldBytes.for_messages(config.message_bytes)
            self._forwarding = HttpForwarding(job.sockets.http, held)
            self._http = await start_http_server(
                config.http_bind,
                [*self._routes(codec, pictures), *self._forwarding.routes()],
                lambda: client.lost,
                access,
                admitted=client.admitted,
                calls=client.calls,
                last_writes_seconds=_LAST_WRITES_SECONDS,
                shares_port=True,
                rotation=self._rotation,
                grpc=self._server.address,
            )

    def _routes(self, codec: TextCodec, pictures: NodePictures | None) -> Sequence[web.RouteDef]:
        job = self._job
        model = served_model(job.folder, job.config, job.max_request_tokens, codec, pictures)
        return [
            *openai_routes(self._client, model),
            *message_routes(self._client, model),
            *answering_routes(self._client, model, AskedResponses(self._registry)),
            *unserved_conversation_routes(),
            *model_routes(model),
        ]

    def _taken(self, message: Any) -> None:
        match message:
            case w.AbortAsked(name):
                self._client.abort_asked(name)
            case w.LeaveRotation():
                self._rotation.leave()
            case w.ComeBack():
                self._rotation.come_back()
            case w.RefuseTraffic():
                self._grammars.close(DRAINS)
                self._rotation.leave()
            case w.AwaitCalls():
                self._waits = self._loop.create_task(self._tell_when_over())
            case w.Look():
                seen = self._pictures
                counts = PictureCounts() if seen is None else seen.counter.counts()
                self._registry.notify(w.Awake(dict(self._client.calls.failures), counts))
            case w.EngineDied(reason):
                self._client.engine_lost(reason)
            case w.EndWorker():
                self._end(0)

    async def _tell_when_over(self) -> None:
        await self._client.calls.over()
        self._registry.notify(w.CallsOver())

    def _end(self, status: int) -> None:
        if not self._ending.done():
            self._ending.set_result(status)

    def _engine_gone(self) -> None:
        """Wait for the registry's reason for the loss of the engine, in case the engine itself has
        gone."""
        if not self._ending.done():
            self._waits = self._loop.create_task(self._wait_for_reason())

    async def _wait_for_reason(self) -> None:
        await asyncio.sleep(_REASON_SECONDS)
        if self._client.lost is None:
            self._client.engine_lost("this front lost its link to the engine; ask again")
            self._end(1)


def _registry_gone() -> None:
    log.error("a front worker ends, and its clients' answers: the node's registry is gone")
    os._exit(1)

"""Front workers over a scripted engine, all in this process. Each has its own event loop and uses
the same sockets as between processes."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from tasuki.engine import messages as m
from tasuki.engine.apart.control import TokensMade
from tasuki.engine.apart.front_links import WorkerLinks, opened_door
from tasuki.server.bind import PortClaim
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import response_store
from tasuki.server.engine_client import EngineClient, RequestObserver
from tasuki.server.grpc.server import Server, start_private_server
from tasuki.server.grpc.services import grpc_services, session_store
from tasuki.server.http.server import HttpServer, start_private_http_server
from tasuki.server.openai.routes import served_model
from tasuki.server.responses.endpoints.routes import response_routes
from tasuki.server.sessions import HeldSessions
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.workers import messages as w
from tasuki.server.workers.links import NodeSockets
from tasuki.server.workers.pool import WorkerLink
from tasuki.server.workers.registry import Registry
from tasuki.server.workers.worker import Worker, WorkerJob
from tests.harness.grpc_fixtures import Front, ScriptedEngine, loop_on_a_thread, write_tokenizer
from tests.harness.waiting import HANG_SECONDS


@dataclass
class Shared:
    """An address shared by several servers."""

    address: str


class FreshConnections:
    """A grpc.Channel for stubs, opening a new connection for each call."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = ExitStack()

    def __enter__(self) -> "FreshConnections":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def unary_unary(self, *arguments: Any, **options: Any) -> "_FreshCall":
        return _FreshCall(self._dial, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> "_FreshCall":
        return _FreshCall(self._dial, "unary_stream", arguments, options)

    def _dial(self) -> grpc.Channel:
        own = (("grpc.use_local_subchannel_pool", 1),)
        return self._open.enter_context(grpc.insecure_channel(self._address, own))


@dataclass
class _FreshCall:
    """The callable of one gRPC method, as a grpc.Channel makes it."""

    dial: Callable[[], grpc.Channel]
    kind: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def _made(self) -> Any:
        return getattr(self.dial(), self.kind)(*self.arguments, **self.options)

    def __call__(self, *asked: Any, **more: Any) -> Any:
        return self._made()(*asked, **more)

    def future(self, *asked: Any, **more: Any) -> Any:
        return self._made().future(*asked, **more)


@contextmanager
def running_workers(
    codec: TextCodec,
    config: ServerConfig,
    engine: ScriptedEngine,
    count: int,
    observer: RequestObserver | None,
) -> Iterator[Front]:
    """Yield an API server as running_front does, with `count` front workers. HTTP is served too if
    the config binds it."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="tasuki-"))
        model = stack.enter_context(TemporaryDirectory(prefix="tiny-"))
        if codec.tokenizer is not None:
            write_tokenizer(Path(model))
        claim = stack.enter_context(closing(PortClaim("bind", "127.0.0.1:0", config.access)))
        config = replace(config, bind=claim.address, front_workers=count, engine_process="process")
        if config.http_bind:
            http_claim = PortClaim("http_bind", "127.0.0.1:0", config.access)
            stack.enter_context(closing(http_claim))
            config = replace(config, http_bind=http_claim.address)
        job = WorkerJob(
            0,
            NodeSockets(folder),
            config,
            model,
            codec.vocab_size,
            codec.max_tokens,
            1000,
            codec.grammars.address,
        )
        node = stack.enter_context(_running_node(codec, job, engine, observer))
        for number in range(1, count + 1):
            stack.enter_context(_running_worker(node, replace(job, number=number)))
        channel: Any = stack.enter_context(FreshConnections(claim.address))
        http = Shared(config.http_bind) if config.http_bind else None
        yield Front(engine, node.client, Shared(claim.address), node.loop, channel, http)


@dataclass
class _Node:
    """The node's objects used by all front workers."""

    client: EngineClient
    registry: Registry
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(HANG_SECONDS)


@contextmanager
def _running_node(
    codec: TextCodec, job: WorkerJob, engine: ScriptedEngine, observer: RequestObserver | None
) -> Iterator[_Node]:
    config = job.config
    with loop_on_a_thread() as loop:
        client = EngineClient(
            engine.post,
            loop,
            observer=observer,
            limits=config.caller_limits,
        )
        store, responses = session_store(client, config), response_store(config)
        registry = Registry(client, lambda name: "", HeldSessions(store, codec), responses)
        node = _Node(client, registry, loop)

        def receive(messages: Sequence[Any]) -> None:
            for message in messages:
                engine.post(message)

        def to_front(messages: Sequence[Any]) -> None:
            client.deliver([each for each in messages if not isinstance(each, TokensMade)])

        def gone(number: int, left: Sequence[m.RequestId]) -> None:
            loop.call_soon_threadsafe(registry.gone_from_engine, number, left)

        links = WorkerLinks(receive, to_front, gone)
        engine.deliver = lambda message: links.split([message])
        engine.start()

        async def start() -> tuple[Server, HttpServer | None, asyncio.Task[None]]:
            services = grpc_services(client, codec, config, store=store)
            server = await start_private_server(job.sockets.grpc, services, config.access)
            http = None
            if config.http_bind:
                served = served_model(job.folder, config, job.max_request_tokens, codec)
                routes = response_routes(client, served, responses)
                http = await start_private_http_server(
                    job.sockets.http, config.http_bind, routes, lambda: client.lost, config.access
                )
            door = opened_door(job.sockets.engine)
            return server, http, loop.create_task(links.let_in(door))

        async def end() -> None:
            letting_in.cancel()
            if http is not None:
                await http.drain()
            await server.drain(0)

        server, http, letting_in = node.run(start())
        try:
            yield node
        finally:
            node.run(end())
            links.close()
            engine.stop()


@contextmanager
def _running_worker(node: _Node, job: WorkerJob) -> Iterator[None]:
    ours, theirs = socket.socketpair()
    stands, left = threading.Event(), threading.Event()

    async def join() -> WorkerLink:
        class Process:
            """A stand-in for a worker's process, receiving the messages of its link to the node."""

            def take(self, message: Any) -> None:
                if isinstance(message, w.WorkerStands):
                    seat.stood = True
                    stands.set()
                else:
                    seat.take(message)

            def link_ended(self) -> None:
                node.registry.left(job.number)
                left.set()

        link = WorkerLink(Process())  # type: ignore[arg-type]
        seat = node.registry.seat(job.number, link.send)
        await node.loop.create_unix_connection(lambda: link, sock=ours)
        return link

    async def live() -> None:
        worker = Worker(job)
        await worker.start(theirs, registry_gone=left.set)
        await worker.ended()

    link = node.run(join())
    with loop_on_a_thread() as loop:
        living = asyncio.run_coroutine_threadsafe(live(), loop)
        living.add_done_callback(lambda _: stands.set())
        assert stands.wait(HANG_SECONDS) and not living.done(), living
        try:
            yield
        finally:
            node.loop.call_soon_threadsafe(link.send, [w.EndWorker()])
            living.result(HANG_SECONDS)
            theirs.close()
            assert left.wait(HANG_SECONDS)

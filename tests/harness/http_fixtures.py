"""An HTTP API server over a scripted engine, and a client with raw replies, for HTTP tests."""

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aiohttp import web

from tasuki.server.config import ServerConfig
from tasuki.server.daemon.client_front import client_routes
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.sampling import OPENAI_DEFAULTS, SamplingDefaults
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import TOKENS_ONLY, Front, ScriptedEngine, Served, running_front
from tests.harness.http_calls import JSON, Reply, ask, connect
from tests.harness.waiting import HANG_SECONDS


@dataclass
class HttpFront:
    front: Front
    server: Served

    @property
    def engine(self) -> ScriptedEngine:
        return self.front.engine

    def dial(self) -> socket.socket:
        """Return a TCP connection to the server, for raw bytes."""
        return socket.create_connection(
            ("127.0.0.1", int(self.server.address.rpartition(":")[2])), timeout=HANG_SECONDS
        )

    def connect(self) -> http.client.HTTPConnection:
        return connect(self.server.address)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        return ask(self.server.address, method, path, body, headers)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        return self.ask("POST", path, body, headers)

    def chat(self, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        messages = [{"role": "user", "content": "it was"}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields}, headers)

    def complete(self, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        return self.post("/v1/completions", {"prompt": [5, 6, 7], **fields}, headers)

    def begin(
        self, headers: dict[str, str] | None = None, **fields: object
    ) -> http.client.HTTPConnection:
        """Request a completion, and return the connection with its answer not yet read."""
        connection = self.connect()
        body = json.dumps({"prompt": [5], **fields})
        connection.request("POST", "/v1/completions", body, {**JSON, **(headers or {})})
        return connection


@contextmanager
def running_http(
    codec: TextCodec = TOKENS_ONLY,
    config: ServerConfig | None = None,
    queue_limit: int = 4096,
    routes: Sequence[web.AbstractRouteDef] | None = None,
    sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS,
    model: ServedModel | None = None,
    workers: int = 1,
) -> Iterator[HttpFront]:
    """Yield a real HTTP server on loopback, beside the gRPC server of running_front. routes:
    replace OpenAI's. model: replaces the served model named tiny. workers: like in running_front;
    they use their own routes and model."""
    config = config or ServerConfig()
    if workers > 1:
        config = replace(config, http_bind="127.0.0.1:0")
        with running_front(codec, config, workers=workers) as front:
            assert front.http is not None
            yield HttpFront(front, front.http)
        return
    with running_front(codec, config, queue_limit) as front:
        served = model or ServedModel("tiny", 1_700_000_000, 1000, codec, sampling_defaults)

        async def start() -> HttpServer:
            return await start_http_server(
                "127.0.0.1:0",
                client_routes(front.client, served, config) if routes is None else routes,
                lambda: front.client.lost,
                config.access,
                admitted=front.client.admitted,
                calls=front.client.calls,
                rotation=front.client.rotation,
            )

        server = front.run(start())
        try:
            yield HttpFront(front, server)
        finally:
            front.run(server.drain())

"""The HTTP front over a scripted engine, and a client that sees raw replies, for HTTP tests."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tasuki.server.config import ServerConfig
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.routes import openai_routes
from tasuki.server.text.text_codec import TextCodec

from tests.harness.front_fixtures import Front, ScriptedEngine, running_front
from tests.harness.waiting import HANG_SECONDS

JSON = {"Content-Type": "application/json"}


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Those of a stream, which must end with [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@dataclass
class HttpFront:
    front: Front
    server: HttpServer

    @property
    def engine(self) -> ScriptedEngine:
        return self.front.engine

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HANG_SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """body: bytes as they are, anything else as JSON."""
        connection = self.connect()
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body)
            connection.request(method, path, content, {**JSON, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict(response.headers), response.read())
        finally:
            connection.close()

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        return self.ask("POST", path, body, headers)

    def chat(self, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        messages = [{"role": "user", "content": "it was"}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields}, headers)

    def complete(self, headers: dict[str, str] | None = None, **fields: object) -> Reply:
        return self.post("/v1/completions", {"prompt": [5, 6, 7], **fields}, headers)


@contextmanager
def running_http(
    codec: TextCodec,
    api_key: str = "",
    queue_limit: int = 4096,
    config: ServerConfig | None = None,
) -> Iterator[HttpFront]:
    """A real server on loopback, beside the gRPC server of running_front."""
    config = config or ServerConfig(api_key=api_key)
    with running_front(codec, config, queue_limit=queue_limit) as front:
        model = ServedModel("tiny", 1_700_000_000, 1000, codec)

        async def start() -> HttpServer:
            routes = openai_routes(front.client, model)
            return await start_http_server(
                "127.0.0.1:0",
                routes,
                lambda: front.client.lost,
                config.access,
                admit=front.client.admit,
            )

        server = asyncio.run_coroutine_threadsafe(start(), front.loop).result(10)
        try:
            yield HttpFront(front, server)
        finally:
            asyncio.run_coroutine_threadsafe(server.drain(), front.loop).result(10)

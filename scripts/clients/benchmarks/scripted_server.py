"""A server of chats that answers each with one script, at the script's moments.

It runs in a thread with an event loop of its own. It serves what benchmarks ask before they begin:
/v1/models, /health and /metrics.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import ClientConnectionResetError, web

from scripts.clients.benchmarks.scripted_stream import Script

MODEL = "embedded"
_START_SECONDS = 30.0


@dataclass
class Served:
    """requests: chats that were answered whole. late_ms: the worst delay of a chunk behind its
    script. bodies: of these chats. unknown: what else was asked for, and is not here."""

    url: str
    requests: int = 0
    late_ms: float = 0.0
    bodies: list[dict[str, object]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


class _Chats:
    def __init__(self, script: Script, served: Served) -> None:
        self._script = script
        self._served = served

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat. A body that asks for no stream is refused with 400. A client that leaves
        gets no more, and is not counted."""
        begun = asyncio.get_running_loop().time()
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"error": {"message": "ask with stream: true"}}, status=400)
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        try:
            for moment, fields in self._script.chunks():
                await self._wait(begun + moment / 1000)
                head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
                chunk = json.dumps({**head, "model": MODEL, **fields})
                await reply.write(f"data: {chunk}\n\n".encode())
            await reply.write(b"data: [DONE]\n\n")
        except ClientConnectionResetError:
            return reply
        self._served.requests += 1
        self._served.bodies.append(body)
        return reply

    async def refuse(self, request: web.Request) -> web.Response:
        """Answer what is not here with 404."""
        self._served.unknown.append(f"{request.method} {request.path}")
        return web.json_response({"error": {"message": "not here"}}, status=404)

    async def _wait(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, until - loop.time()))
        self._served.late_ms = max(self._served.late_ms, (loop.time() - until) * 1000)


async def _models(request: web.Request) -> web.Response:
    model = {"id": MODEL, "object": "model", "created": 1, "owned_by": "script"}
    return web.json_response({"object": "list", "data": [{**model, "max_model_len": 4096}]})


async def _nothing(request: web.Request) -> web.Response:
    return web.Response()


def _application(script: Script, served: Served) -> web.Application:
    application = web.Application()
    chats = _Chats(script, served)
    application.router.add_post("/v1/chat/completions", chats.stream)
    application.router.add_get("/v1/models", _models)
    for path in ("/health", "/metrics"):
        application.router.add_get(path, _nothing)
    application.router.add_route("*", "/{path:.*}", chats.refuse)
    return application


@contextmanager
def scripted_server(script: Script) -> Iterator[Served]:
    """Serve the script on a port of loopback for as long as a block runs.

    Raises TimeoutError where it does not begin within half a minute.
    """
    loop = asyncio.new_event_loop()
    begun: Future[Served] = Future()

    async def serve() -> None:
        served = Served("")
        runner = web.AppRunner(_application(script, served))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        served.url = f"http://{host}:{port}"
        begun.set_result(served)
        await ended.wait()
        await runner.cleanup()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        yield begun.result(_START_SECONDS)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(_START_SECONDS)
        loop.close()

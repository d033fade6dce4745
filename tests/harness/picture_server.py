"""A local server of pictures over https, which answers rightly, slowly or wrongly by its path."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.harness.certificates import Authority
from tests.harness.fetch_stand_ins import AUTHORITY
from tests.harness.picture_files import picture_file
from tests.harness.waiting import HANG_SECONDS

NAMES = ("*.local.test", "*.loopback.test")


@dataclass
class PictureServer:
    """port: of the server. asked: paths so far. headers: of the last call."""

    port: int = 0
    asked: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def url(self, path: str, kind: str = "local") -> str:
        return f"https://p{self.port}.{kind}.test/{path}"


@contextmanager
def serving_pictures(folder: Path) -> Iterator[PictureServer]:
    """Run the server. folder: gets its authority."""
    authority = Authority(folder, "pictures")
    assert Path(authority.path).name == AUTHORITY
    issued = authority.issue(*NAMES)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.certificate, issued.key)
    server = PictureServer()
    loop, ready, thread_errors = asyncio.new_event_loop(), threading.Event(), []

    async def answer(request: web.Request) -> web.StreamResponse:
        server.asked.append(request.path)
        server.headers = {name.lower(): value for name, value in request.headers.items()}
        return await _answer(request)

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        server.port = runner.addresses[0][1]
        return runner

    def run() -> None:
        try:
            runner = loop.run_until_complete(start())
            ready.set()
            loop.run_forever()
            loop.run_until_complete(_stop(runner))
        except BaseException as error:
            thread_errors.append(error)
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(HANG_SECONDS) and not thread_errors, thread_errors
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG_SECONDS)


async def _stop(runner: web.AppRunner) -> None:
    """End the server, and the calls that never end."""
    await runner.cleanup()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _answer(request: web.Request) -> web.StreamResponse:
    match request.match_info["path"]:
        case "a.png":
            return web.Response(body=picture_file(64, 96), content_type="text/plain")
        case "redirect":
            raise web.HTTPFound("/a.png")
        case "cookie":
            found = web.Response(body=picture_file())
            found.set_cookie("a", "b")
            return found
        case "words":
            return web.Response(body=b"words", content_type="image/png")
        case "long":
            return web.Response(body=bytes(1 << 20), content_type="image/png")
        case "endless" | "drip" as path:
            reply = web.StreamResponse()
            await reply.prepare(request)
            with suppress(ConnectionError):
                while True:
                    await reply.write(bytes(1 << 16) if path == "endless" else b"x")
                    await asyncio.sleep(0.0 if path == "endless" else 0.05)
            return reply
        case "silent":
            await asyncio.sleep(3600)
    raise web.HTTPNotFound

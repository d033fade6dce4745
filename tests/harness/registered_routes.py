"""The gRPC methods and HTTP routes registered by a daemon. They come from gRPC's and aiohttp's own
tables, so every served one is listed.

serve_and_list(FILE, ARGUMENTS) is `tasuki ARGUMENTS` in a separate process, as a ForkedDaemon's
main. FILE gets one line of JSON per method, ["grpc", NAME], or route, ["http", METHOD, PATTERN].
"""

import json
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web

from tasuki.cli import main as cli


def read(file: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """Read a file of serve_and_list(). Returns the gRPC methods, and the HTTP methods with
    patterns."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    grpc_methods = {line[1] for line in lines if line[0] == "grpc"}
    return grpc_methods, {(line[1], line[2]) for line in lines if line[0] == "http"}


def serve_and_list(file: Path, arguments: list[str]) -> int:
    """Run `tasuki ARGUMENTS`, and write all its methods and routes to the file. Changes gRPC and
    aiohttp for the rest of the process."""

    def write(*words: str) -> None:
        with file.open("a") as out:
            out.write(json.dumps(words) + "\n")

    build_server, setup = grpc.aio.server, web.AppRunner.setup

    def listing_server(*args: Any, **named: Any) -> Any:
        server = build_server(*args, **named)
        add = server.add_generic_rpc_handlers

        def listing_add(handlers: Any) -> None:
            for handler in handlers:
                for name in handler._method_handlers:
                    write("grpc", name)
            add(handlers)

        server.add_generic_rpc_handlers = listing_add  # type: ignore[method-assign]
        return server

    async def listing_setup(runner: web.AppRunner) -> None:
        for route in runner.app.router.routes():
            assert route.resource is not None
            write("http", route.method, route.resource.canonical)
        await setup(runner)

    grpc.aio.server = listing_server
    web.AppRunner.setup = listing_setup  # type: ignore[method-assign]
    return cli.main(arguments)

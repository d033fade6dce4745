"""A daemon that also writes down what it serves: each gRPC method and HTTP route it registers.

TellingDaemon runs main(FILE, [COMMAND, FLAGS ...]), which is `tasuki COMMAND FLAGS ...`; FILE gets
a line of JSON a method, ["grpc", NAME], or route, ["http", METHOD, PATTERN]. What is written comes
from gRPC's and aiohttp's own tables, so that nothing can be served and not be told.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.cli.launcher import Daemon

ROOT = Path(__file__).parents[2]
_MAIN = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.harness.told_surfaces import main
sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
"""


class TellingDaemon(Daemon):
    """Like Daemon, which see."""

    def __init__(self, file: Path, command: str, flags: Sequence[str], bind: str) -> None:
        self._program = ("-c", _MAIN, str(file))
        super().__init__(command, flags, bind)


def read(file: Path) -> tuple[set[str], set[tuple[str, str]]]:
    """gRPC methods, and HTTP methods with patterns."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    grpc_methods = {line[1] for line in lines if line[0] == "grpc"}
    return grpc_methods, {(line[1], line[2]) for line in lines if line[0] == "http"}


def main(file: Path, arguments: list[str]) -> int:
    import grpc
    from aiohttp import web

    from tasuki.cli import main as cli

    def tell(*words: str) -> None:
        with file.open("a") as out:
            out.write(json.dumps(words) + "\n")

    build_server, setup = grpc.aio.server, web.AppRunner.setup

    def telling_server(*args: Any, **named: Any) -> Any:
        server = build_server(*args, **named)
        add = server.add_generic_rpc_handlers

        def telling_add(handlers: Any) -> None:
            for handler in handlers:
                for name in handler._method_handlers:
                    tell("grpc", name)
            add(handlers)

        server.add_generic_rpc_handlers = telling_add  # type: ignore[method-assign]
        return server

    async def telling_setup(runner: web.AppRunner) -> None:
        for route in runner.app.router.routes():
            assert route.resource is not None
            tell("http", route.method, route.resource.canonical)
        await setup(runner)

    grpc.aio.server = telling_server
    web.AppRunner.setup = telling_setup  # type: ignore[method-assign]
    return cli.main(arguments)

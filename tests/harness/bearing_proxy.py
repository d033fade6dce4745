"""A proxy that adds metadata to every gRPC call: what a mesh does for a gateway that cannot.

Knows no services: messages pass as bytes, and every call as a stream of them.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tests.harness.grpc_fixtures import loop_on_a_thread
from tests.harness.waiting import HANG_SECONDS

Metadata = tuple[tuple[str, str], ...]


class _Passing(grpc.GenericRpcHandler):
    def __init__(self, channel: grpc.aio.Channel, added: Metadata) -> None:
        self._channel = channel
        self._added = added

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        async def passing(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            given = [pair for pair in details.invocation_metadata or () if _passes(pair[0])]
            call = self._channel.stream_stream(details.method)(
                requests, metadata=(*given, *self._added)
            )
            try:
                await context.send_initial_metadata(await call.initial_metadata())
                async for reply in call:
                    yield reply
                context.set_trailing_metadata(await call.trailing_metadata())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details(), error.trailing_metadata())
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(passing)


def _passes(name: str) -> bool:
    return not name.startswith(("grpc-", ":")) and name not in ("user-agent", "te", "content-type")


@contextmanager
def bearing_proxy(target: str, *added: tuple[str, str]) -> Iterator[str]:
    """HOST:PORT that answers as target does to callers who bear `added`."""

    async def start() -> tuple[grpc.aio.Server, grpc.aio.Channel, int]:
        channel = grpc.aio.insecure_channel(target)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Passing(channel, added),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, channel, port

    async def stop(server: grpc.aio.Server, channel: grpc.aio.Channel) -> None:
        await server.stop(0)
        await channel.close()

    with loop_on_a_thread() as loop:
        server, channel, port = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_SECONDS)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(stop(server, channel), loop).result(HANG_SECONDS)

"""Refuses, with the mend, tasuki's methods that this node does not serve, and OpenAI's paths on a
node that answers no clients. gRPC's own refusal names no mend.

Uses services' names alone. One event loop's thread.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web

from tasuki.server.errors import NotServedHere

from .malformed_requests import Failed, refusing

_CLIENTS = "clients ask decode nodes, or `tasuki serve`"
_MENDS = {
    "/tasuki.v1.Inference/": _CLIENTS,
    "/tasuki.v1.Session/": _CLIENTS,
    "/tokenspeed.": "start this node with --gateway",
    "/tasuki.handover.": "name a prefill node with --prefill",
    "/tasuki.": "ask a node of that role and of the caller's version",
}


class UnimplementedMethods(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Methods of foreign services keep gRPC's own refusal."""

    def __init__(self, failed: Failed) -> None:
        """failed: as MalformedRequests."""
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is not None or not method.startswith(tuple(_MENDS)):
            return handler

        mend = next(_MENDS[prefix] for prefix in _MENDS if method.startswith(prefix))
        return refusing(_unimplemented(method, mend), self._failed)


def unimplemented_routes() -> list[web.RouteDef]:
    """OpenAI's paths on a node that answers no clients."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise _unimplemented(request.path, _CLIENTS)

    paths = ("/v1/{path:.*}", "/tokenize", "/detokenize", "/tokenizer_info")
    return [web.route("*", path, refuse) for path in paths]


def _unimplemented(what: str, mend: str) -> NotServedHere:
    return NotServedHere(f"{what} is not served here: {mend}")

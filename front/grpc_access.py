"""Who may call over gRPC: the bearers of an API key, where there is one. It is never logged.

Health and reflection carry no secrets and stay open. The Handover service is not asked for the key
either: its callers are nodes, which a certificate names.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from .api_keys import ApiKeys
from .errors import ERROR_KIND_KEY
from .malformed import method_of

_GUARDED = ("/tasuki.v1.", "/tokenspeed.")


class RequireKey(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Asks for the metadata `authorization: Bearer API_KEY`."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if not handler_call_details.method.startswith(_GUARDED) or self._bears_key(
            handler_call_details
        ):
            return handler
        return None if handler is None else _refusing(handler)

    def _bears_key(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata or ()).get("authorization")
        return self._keys.caller(given) is not None


async def _refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "send this node's key as the metadata `authorization: Bearer KEY`",
        ((ERROR_KIND_KEY, "invalid_api_key"),),
    )


def _refusing(handler: Any) -> Any:
    """A handler of the same kind, so that the caller sees the status and not a broken stream."""

    async def refusal(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await _refuse(context)

    _, build = method_of(handler)
    return build(
        refusal,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )

"""Checks each gRPC call against surfaces.py before the method's message is read.

Uses methods' names alone. A key is never logged. One event loop's thread.
"""

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from tasuki.engine.messages import Targets
from tasuki.server.auth.api_keys import ApiKeys
from tasuki.server.auth.caller import OWNER, Caller
from tasuki.server.auth.request_context import TRACE_HEADER, RequestContext
from tasuki.server.auth.surfaces import GRPC, Unscoped, denial, suffices
from tasuki.server.auth.tenant import TENANT_KEY, WatchScope, tenant_of, watch_scope
from tasuki.server.errors import CallContext, InvalidApiKey, NotServedHere, ServerError
from tasuki.server.request_checks import read_targets

from .malformed_requests import Failed, refusing

_AUTHORIZATION = "authorization"


def grpc_caller(keys: ApiKeys, metadata: Iterable[tuple[str, str | bytes]] | None) -> Caller | None:
    """The caller whose key is in the metadata; None where it has no known key."""
    return keys.caller([value for name, value in metadata or () if name == _AUTHORIZATION])


def patience_of(context: CallContext) -> float:
    """Seconds until the call's deadline; infinite where it has none."""
    left = context.time_remaining()
    return math.inf if left is None else left


def metadata_targets(context: CallContext) -> Targets:
    """What the caller or a proxy of its wants an answer within. Raises InvalidField."""
    return read_targets(lambda name: _values(context, name))


class RequireScope(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses a call unless its metadata has `authorization: Bearer API_KEY` with a key of the
    method's scope."""

    def __init__(self, keys: ApiKeys, failed: Failed) -> None:
        """failed: as MalformedRequests."""
        self._keys = keys
        self._failed = failed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        # A method of a foreign service keeps gRPC's own refusal.
        refusal = None if handler is None else self._refusal(handler_call_details)
        return handler if refusal is None else refusing(refusal, self._failed)

    def _refusal(self, details: grpc.HandlerCallDetails) -> ServerError | None:
        method = details.method
        caller = grpc_caller(self._keys, details.invocation_metadata)
        needs = GRPC.get(method, Unscoped.ANY_KEY)
        if not suffices(needs, caller):
            if caller is None:
                return InvalidApiKey(
                    "send this node's key as the metadata `authorization: Bearer KEY`"
                )
            return denial(method, needs, caller)
        if method not in GRPC:
            return NotServedHere(
                f"{method} is not served here: ask a node of that role and of the caller's version"
            )
        return None


def grpc_request_context(keys: ApiKeys, context: CallContext) -> RequestContext:
    """REQUIRES: the interceptor has let the call in. Raises PermissionDenied, InvalidField."""
    caller = _caller(keys, context)
    traceparent = "".join(_values(context, TRACE_HEADER)[-1:])
    return RequestContext(caller, traceparent, tenant_of(caller, _values(context, TENANT_KEY)))


def grpc_watch_scope(keys: ApiKeys, context: CallContext) -> WatchScope:
    """Whose blocks a subscriber sees. Raises PermissionDenied, InvalidField."""
    return watch_scope(_caller(keys, context), _values(context, TENANT_KEY))


def named_tenant(context: CallContext) -> str | None:
    """The tenant that an operator's call names; None: no tenant. Raises InvalidField."""
    return tenant_of(OWNER, _values(context, TENANT_KEY))


def _caller(keys: ApiKeys, context: CallContext) -> Caller:
    caller = grpc_caller(keys, context.invocation_metadata())
    assert caller is not None
    return caller


def _values(context: CallContext, name: str) -> list[str]:
    """gRPC allows bytes only where a name ends in -bin."""
    return [str(value) for key, value in context.invocation_metadata() or () if key == name]

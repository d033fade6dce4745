"""Where a request comes from: who asks, for which tenant, and which trace it belongs to.

Knows no transport's rules for keys; reads what was let in. Pure.
"""

from dataclasses import dataclass

from aiohttp import web

from .api_keys import ApiKeys
from .caller import ANYBODY, OWNER, Caller
from .errors import CallContext
from .grpc_access import grpc_caller
from .http_access import http_caller
from .tenant import TENANT_KEY, Watched, tenant_of, watched_by

TRACE_HEADER = "traceparent"
"""As W3C names it, in HTTP headers and in gRPC metadata."""


@dataclass(frozen=True)
class Origin:
    """traceparent: the caller's span as W3C writes it; empty where there is none. tenant: as
    tenant_of() has it."""

    caller: Caller = ANYBODY
    traceparent: str = ""
    tenant: str | None = None


NOWHERE = Origin()


def grpc_origin(keys: ApiKeys, context: CallContext) -> Origin:
    """REQUIRES: the interceptor has let the call in. Raises PermissionDenied, InvalidField."""
    caller = _caller(keys, context)
    traceparent = "".join(_values(context, TRACE_HEADER)[-1:])
    return Origin(caller, traceparent, tenant_of(caller, _values(context, TENANT_KEY)))


def grpc_watched(keys: ApiKeys, context: CallContext) -> Watched:
    """Whose blocks a subscriber is told of. Raises PermissionDenied, InvalidField."""
    return watched_by(_caller(keys, context), _values(context, TENANT_KEY))


def named_tenant(context: CallContext) -> str | None:
    """Whose prompts an operator's call is about; None: of no tenant. Raises InvalidField."""
    return tenant_of(OWNER, _values(context, TENANT_KEY))


def http_origin(request: web.Request) -> Origin:
    """Raises PermissionDenied, InvalidField."""
    caller = http_caller(request)
    tenant = tenant_of(caller, request.headers.getall(TENANT_KEY, []))
    return Origin(caller, request.headers.get(TRACE_HEADER, ""), tenant)


def _caller(keys: ApiKeys, context: CallContext) -> Caller:
    caller = grpc_caller(keys, context.invocation_metadata())
    assert caller is not None
    return caller


def _values(context: CallContext, name: str) -> list[str]:
    """gRPC allows bytes only where a name ends in -bin."""
    return [str(value) for key, value in context.invocation_metadata() or () if key == name]

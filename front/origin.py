"""Where a request comes from: who asks, and which trace it belongs to.

Knows no transport's rules for keys; reads what was let in. Pure.
"""

from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .api_keys import ApiKeys
from .caller import ANYBODY, Caller
from .errors import CallContext
from .grpc_access import grpc_caller
from .http_access import http_caller

TRACE_HEADER = "traceparent"
"""As W3C names it, in HTTP headers and in gRPC metadata."""


@dataclass(frozen=True)
class Origin:
    """traceparent: the caller's span as W3C writes it; empty where there is none."""

    caller: Caller = ANYBODY
    traceparent: str = ""


NOWHERE = Origin()


def grpc_origin(keys: ApiKeys, context: CallContext) -> Origin:
    """REQUIRES: the interceptor has let the call in."""
    pairs = context.invocation_metadata() or ()
    caller = grpc_caller(keys, pairs)
    assert caller is not None
    metadata: dict[str, Any] = dict(pairs)
    given = metadata.get(TRACE_HEADER, "")
    return Origin(caller, given if isinstance(given, str) else "")


def http_origin(request: web.Request) -> Origin:
    return Origin(http_caller(request), request.headers.get(TRACE_HEADER, ""))

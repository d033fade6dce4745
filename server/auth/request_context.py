"""Where a request comes from: who asks, for which tenant, and which trace it belongs to.

Knows no transport's rules for keys; reads what was let in. Pure.
"""

from dataclasses import dataclass

from .caller import ANYBODY, Caller

TRACE_HEADER = "traceparent"
"""As W3C names it, in HTTP headers and in gRPC metadata."""


@dataclass(frozen=True)
class RequestContext:
    """traceparent: the caller's span as W3C writes it; empty where there is none. tenant: as
    tenant_of() has it."""

    caller: Caller = ANYBODY
    traceparent: str = ""
    tenant: str | None = None


ANONYMOUS = RequestContext()

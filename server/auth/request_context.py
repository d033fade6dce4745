"""A request's caller, tenant and trace, once the request was admitted. Pure."""

from dataclasses import dataclass

from .caller import ANYBODY, Caller

TRACE_HEADER = "traceparent"
"""As W3C names it, in HTTP headers and in gRPC metadata."""


@dataclass(frozen=True)
class RequestContext:
    """traceparent: the caller's span in W3C's form; empty where there is none. tenant: from
    tenant_of()."""

    caller: Caller = ANYBODY
    traceparent: str = ""
    tenant: str | None = None

    @property
    def line(self) -> str:
        """Among whose requests it stands, wherever callers take turns."""
        return self.tenant or self.caller.name


ANONYMOUS = RequestContext()

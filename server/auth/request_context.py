"""A request's caller, tenant, trace and kind, once the request was admitted. Pure."""

from dataclasses import dataclass

from .caller import ANYBODY, Caller

TRACE_HEADER = "traceparent"
"""As W3C names it, in HTTP headers and in gRPC metadata."""


CHAT, TEXT_COMPLETION = "chat", "text_completion"
"""Values of OpenTelemetry's gen_ai.operation.name."""


@dataclass(frozen=True)
class RequestContext:
    """traceparent: the caller's span in W3C's form; empty where there is none. tenant: from
    tenant_of(). operation: as OpenTelemetry names it."""

    caller: Caller = ANYBODY
    traceparent: str = ""
    tenant: str | None = None
    operation: str = TEXT_COMPLETION

    @property
    def line(self) -> str:
        """Among whose requests it stands, wherever callers take turns."""
        return self.tenant or self.caller.name


ANONYMOUS = RequestContext()

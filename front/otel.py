"""Requests as OpenTelemetry spans, sent to a collector by OTLP over gRPC.

Owns the exporter and the spans of live requests. Needs the extra `tasuki[otel]`; nothing else
imports the SDK. Thread rule: the event loop; the SDK sends from a thread of its own.
Invariant: every span that is begun is ended, by the message that ends its request or by close().
"""

import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..engine.messages import Finished, Rejected, RequestId, TokenOut, Usage
from .origin import TRACE_HEADER, Origin
from .tracing import Attributes
from .version import package_version

_NANOSECONDS = 10**9
_CLOSE_MILLISECONDS = 5000


class OtelTracing:
    def __init__(self, endpoint: str, node: str, role: str) -> None:
        """endpoint: of a collector, http://HOST:PORT; https speaks TLS. node: this one's name."""
        resource = Resource.create(
            {
                "service.name": "tasuki",
                "service.version": package_version(),
                "service.instance.id": node,
                "tasuki.role": role,
            }
        )
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tasuki")
        self._propagator = TraceContextTextMapPropagator()
        self._live: dict[RequestId, tuple[Span, int]] = {}

    def begin(self, request: RequestId, origin: Origin) -> None:
        now = time.time_ns()
        span = self._tracer.start_span(
            "request",
            self._propagator.extract({TRACE_HEADER: origin.traceparent}),
            SpanKind.SERVER,
            {"tasuki.request_id": request, "tasuki.caller": origin.caller},
            start_time=now,
        )
        self._live[request] = (span, now)

    def header(self, request: RequestId) -> str:
        live = self._live.get(request)
        if live is None:
            return ""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(live[0]))
        return carrier.get(TRACE_HEADER, "")

    def observe(self, message: TokenOut | Finished | Rejected) -> None:
        if isinstance(message, TokenOut):
            return
        span, began = self._live.pop(message.request_id, (None, 0))
        if span is None:
            return
        if isinstance(message, Finished):
            self._tell(span, began, message.usage)
            span.set_attribute("tasuki.finish_reason", message.reason.value)
        else:
            span.set_status(Status(StatusCode.ERROR, message.error.message))
            span.set_attribute("error.type", message.error.kind.value)
        span.end()

    def _tell(self, span: Span, began: int, usage: Usage) -> None:
        """The phases that the usage knows; those of a hand-over are told by its room."""
        hit = usage.hit
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": 0 if hit is None else hit.usable_tokens,
                "tasuki.prefilled_on": usage.prefilled_on,
                "tasuki.local_fallback": usage.local_fallback,
            }
        )
        self._phase(span, began, "queue", 0.0, usage.queue_seconds)
        if usage.completion_tokens:
            first = usage.time_to_first_token
            if usage.prefilled_on == "local":
                self._phase(span, began, "prefill", usage.queue_seconds, first)
            self._phase(span, began, "decode", first, usage.seconds)

    def _phase(self, parent: Span, origin: int, name: str, began: float, ended: float) -> None:
        """began, ended: seconds after the request's begin."""
        span = self._tracer.start_span(
            name, set_span_in_context(parent), start_time=origin + int(began * _NANOSECONDS)
        )
        span.end(origin + int(ended * _NANOSECONDS))

    def span(
        self, traceparent: str, name: str, began: float, ended: float, attributes: Attributes
    ) -> None:
        offset = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            name,
            self._propagator.extract({TRACE_HEADER: traceparent}),
            attributes=dict(attributes),
            start_time=int(began * _NANOSECONDS) + offset,
        )
        span.end(int(ended * _NANOSECONDS) + offset)

    def close(self) -> None:
        for span, _ in self._live.values():
            span.end()
        self._live.clear()
        self._provider.force_flush(_CLOSE_MILLISECONDS)
        self._provider.shutdown()

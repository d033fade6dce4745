"""Requests as OpenTelemetry spans, sent to a collector by OTLP over gRPC.

Names with the prefix gen_ai come from version 1.41.1 of the semantic conventions, the last one with
definitions. They describe clients' spans there; here a request's span is the server's.

Owns the exporter and the spans of live requests. Needs the extra `tasuki[otel]`; nothing else
imports the SDK. Thread rule: the event loop; any thread for header(), because it only reads one
span. The SDK sends from its own thread. Invariant: every begun span is ended, by its request's last
message or by close().
"""

import time
from collections import Counter
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.auth.tenants import TRACE_HEADER, RequestContext
from tasuki.utils.program import package_version

SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.1"
PROVIDER = "tasuki"
_NANOSECONDS = 10**9
_CLOSE_MILLISECONDS = 5000
_SPAN_OF = {
    m.RequestPhase.WAITING: "queue",
    m.RequestPhase.AWAITING_PREFILL: "handshake",
    m.RequestPhase.RECEIVING: "windows",
    m.RequestPhase.LOADING: "load",
    m.RequestPhase.AWAITING_GRANT: "await grant",
    m.RequestPhase.ENCODING: "encode pictures",
    m.RequestPhase.PULLING: "pull",
    m.RequestPhase.PREFILLING: "prefill",
    m.RequestPhase.HANDING_OVER: "hand over",
    m.RequestPhase.DECODING: "decode",
}
"""Names of the spans of a request's phases. Other phases take no time and have no span."""


class OtelTracing:
    def __init__(self, endpoint: str, node: str, role: str, model: str) -> None:
        """Open the connection to a collector. endpoint: http://HOST:PORT, or https for TLS. node:
        this node's name. model: the clients' name for the model."""
        self._model = model
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
        self._tracer = self._provider.get_tracer("tasuki", package_version(), SCHEMA_URL)
        self._propagator = TraceContextTextMapPropagator()
        self._live: dict[m.RequestId, Span] = {}
        self._transfers: dict[m.TransferId, Span] = {}

    def begin(self, request: m.RequestId, request_context: RequestContext) -> None:
        operation = request_context.operation
        self._live[request] = self._tracer.start_span(
            f"{operation} {self._model}",
            self._beneath(request_context.traceparent),
            SpanKind.SERVER,
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                "tasuki.request_id": request,
                "tasuki.caller": request_context.caller.name,
            },
        )

    def begin_transfer(self, transfer_id: m.TransferId, request: str, traceparent: str) -> None:
        if traceparent:
            self._transfers[transfer_id] = self._tracer.start_span(
                "room", self._beneath(traceparent), SpanKind.SERVER, {"tasuki.request_id": request}
            )

    def header(self, request: m.RequestId) -> str:
        span = self._live.get(request)
        if span is None:
            return ""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return carrier.get(TRACE_HEADER, "")

    def observe(self, message: ObservedMessage) -> None:
        match message:
            case m.Submit(request_id=request, sampling=sampling):
                if (span := self._live.get(request)) is not None:
                    span.set_attributes(_asked(sampling))
            case m.Finished(request_id=request):
                if (span := self._live.pop(request, None)) is not None:
                    _describe(span, message.usage)
                    span.set_attribute("gen_ai.response.finish_reasons", [message.reason.value])
                    self._add_pictures(span, message.usage)
                    self._end(span, message.life, message.usage.seconds)
            case m.Rejected(request_id=request, error=error):
                if (span := self._live.pop(request, None)) is not None:
                    span.set_status(Status(StatusCode.ERROR, error.message))
                    span.set_attribute("error.type", error.kind.value)
                    span.end()
            case m.TransferEnded(transfer_id=transfer_id):
                if (span := self._transfers.pop(transfer_id, None)) is not None:
                    span.set_attribute("tasuki.handed_on", message.handed_on)
                    last = message.life[-1].at if message.life else 0.0
                    self._end(span, message.life, last)

    def _end(self, span: Span, life: Sequence[m.LifeMark], seconds: float) -> None:
        """End the request's span, with a child span for each phase. seconds: time from arrival to
        end. The end is the present time."""
        ended = time.time_ns()
        began = ended - int(seconds * _NANOSECONDS)
        marks = [m.LifeMark(m.RequestPhase.WAITING, 0.0), *life]
        ends = [*(mark.at for mark in marks[1:]), seconds]
        for mark, end in zip(marks, ends, strict=True):
            if mark.state in _SPAN_OF:
                phase = self._tracer.start_span(
                    _SPAN_OF[mark.state],
                    set_span_in_context(span),
                    start_time=began + int(mark.at * _NANOSECONDS),
                )
                phase.end(began + int(end * _NANOSECONDS))
        span.end(ended)

    def _add_pictures(self, span: Span, usage: m.Usage) -> None:
        """Add the spans of encoded pictures beneath the request's span. The end is the present
        time."""
        if usage.pictures is None:
            return
        arrived = time.time_ns() - int(usage.seconds * _NANOSECONDS)
        beneath = set_span_in_context(span)
        for picture in usage.pictures.each:
            decoded = picture.decode_at + picture.decode_seconds + picture.resize_seconds
            stages = (
                ("decode picture", picture.decode_seconds, picture.decode_at, decoded),
                ("encode picture", picture.tower_seconds, picture.tower_at, picture.ready_at),
            )
            for name, seconds, begin, end in stages:
                if not seconds:
                    continue
                stage = self._tracer.start_span(
                    name,
                    beneath,
                    attributes=_picture(picture),
                    start_time=arrived + int(begin * _NANOSECONDS),
                )
                stage.end(arrived + int(end * _NANOSECONDS))

    def _beneath(self, traceparent: str) -> Context:
        return self._propagator.extract({TRACE_HEADER: traceparent})

    def close(self) -> None:
        for span in (*self._live.values(), *self._transfers.values()):
            span.end()
        self._live.clear()
        self._transfers.clear()
        self._provider.force_flush(_CLOSE_MILLISECONDS)
        self._provider.shutdown()


def _asked(sampling: SamplingParams) -> dict[str, int | float]:
    """Return the span attributes for the sampling parameters of an answer."""
    found: dict[str, int | float] = {
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": sampling.seed,
    }
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    return found


def _pictures(report: m.PicturesReport) -> dict[str, int]:
    """Return the attributes for the pictures of a prompt: their number, their tokens, and the
    number of each outcome."""
    outcomes = Counter(picture.outcome.value for picture in report.each)
    return {
        "tasuki.pictures": report.count,
        "tasuki.image_tokens": report.image_tokens + report.video_tokens,
        **{f"tasuki.pictures.{outcome}": count for outcome, count in outcomes.items()},
    }


def _picture(picture: m.PictureUse) -> dict[str, int | float | str]:
    return {
        "tasuki.picture.place": picture.place,
        "tasuki.picture.tokens": picture.tokens,
        "tasuki.picture.bytes": picture.bytes,
        "tasuki.picture.busy_seconds": picture.tower_seconds,
    }


def _describe(span: Span, usage: m.Usage) -> None:
    """Set the span's attributes from the usage, under OpenTelemetry's names if defined."""
    hit, transfer = usage.hit, usage.transfer
    span.set_attributes(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": 0 if hit is None else hit.usable_tokens,
            **({} if usage.pictures is None else _pictures(usage.pictures)),
            "tasuki.prefilled_on": usage.prefilled_on,
            "tasuki.local_fallback": usage.local_fallback,
            "tasuki.first_token_seconds": usage.time_to_first_token,
            "tasuki.transfer.bytes": 0 if transfer is None else transfer.bytes,
            "tasuki.transfer.exposed_seconds": 0.0
            if transfer is None
            else transfer.exposed_seconds,
        }
    )

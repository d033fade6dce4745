"""A collector of OpenTelemetry spans on loopback: the real OTLP service, kept in memory."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest

collector = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
    reason="OpenTelemetry is not installed",
)
collector_grpc = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc"
)


@dataclass(frozen=True)
class SeenSpan:
    """A received span. began, ended: nanoseconds since the epoch."""

    node: str
    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, object]
    failed: bool


class Collector(collector_grpc.TraceServiceServicer):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[SeenSpan] = []
        self.url = ""

    def Export(self, request, context):  # type: ignore[no-untyped-def]
        with self._lock:
            for group in request.resource_spans:
                about = _values(group.resource.attributes)
                node = about.get("service.instance.id", about.get("service.name", ""))
                for scope in group.scope_spans:
                    self._spans += [_seen(str(node), span) for span in scope.spans]
        return collector.ExportTraceServiceResponse()

    def spans(self, trace: str) -> list[SeenSpan]:
        with self._lock:
            return [span for span in self._spans if span.trace == trace]


def _values(pairs) -> dict[str, object]:  # type: ignore[no-untyped-def]
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _seen(node: str, span) -> SeenSpan:  # type: ignore[no-untyped-def]
    return SeenSpan(
        node,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        span.status.code == 2,
    )


@contextmanager
def running_collector() -> Iterator[Collector]:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = Collector()
    collector_grpc.add_TraceServiceServicer_to_server(servicer, server)
    servicer.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield servicer
    finally:
        server.stop(0).wait()

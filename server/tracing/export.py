"""Chooses where a node sends its traces: to a collector, or nowhere.

Imports the OpenTelemetry SDK only where an endpoint is set.
"""

import importlib.util

from .tracing import NoTracing, Tracing


class TracingUnavailable(RuntimeError):
    """Traces are wanted and cannot be sent; the message has the mend."""


def open_tracing(endpoint: str, node: str, role: str) -> Tracing:
    """endpoint: of an OTLP collector; empty: no tracing. node, role: attributes of each span.
    Raises TracingUnavailable."""
    if not endpoint:
        return NoTracing()
    if not endpoint.startswith(("http://", "https://")):
        raise TracingUnavailable(
            f"otlp_endpoint {endpoint!r} is no URL: write for example http://127.0.0.1:4317"
        )
    if importlib.util.find_spec("opentelemetry") is None:
        raise TracingUnavailable(
            "otlp_endpoint needs OpenTelemetry: install it with pip install 'tasuki[otel]'"
        )
    from .otel import OtelTracing

    return OtelTracing(endpoint, node, role)

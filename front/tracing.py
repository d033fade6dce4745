"""What a node tells of its requests to a tracing system, and what it tells to none.

Does not know OpenTelemetry: front/otel.py does. Thread rule: the event loop.
Invariants: a span's times are those of the clock that measured it, so that spans of one node fit
each other to the microsecond; what is traced never delays a request.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from ..engine.messages import Finished, Rejected, RequestId, TokenOut
from .origin import Origin

Attributes = Mapping[str, str | int | float | bool]


class Tracing(Protocol):
    def begin(self, request: RequestId, origin: Origin) -> None:
        """A request was taken in; its span ends with the message that ends it."""

    def header(self, request: RequestId) -> str:
        """The traceparent of a live request's span, for whom it is handed to; empty where it is
        not traced."""

    def observe(self, message: TokenOut | Finished | Rejected) -> None:
        """What the request is told."""

    def span(
        self, traceparent: str, name: str, began: float, ended: float, attributes: Attributes
    ) -> None:
        """A span that is over, beneath another's. began, ended: seconds of time.monotonic()."""

    def close(self) -> None:
        """Send what has not been sent. May block for seconds."""


class NoTracing:
    """Tells nobody."""

    def begin(self, request: RequestId, origin: Origin) -> None:
        return None

    def header(self, request: RequestId) -> str:
        return ""

    def observe(self, message: TokenOut | Finished | Rejected) -> None:
        return None

    def span(
        self, traceparent: str, name: str, began: float, ended: float, attributes: Attributes
    ) -> None:
        return None

    def close(self) -> None:
        return None


class Phases:
    """The spans of one room, beneath its request's. Those still open when it is left are ended
    there and marked as cut."""

    def __init__(self, tracing: Tracing, traceparent: str, attributes: Attributes) -> None:
        self._tracing = tracing
        self._traceparent = traceparent
        self._attributes = attributes
        self._open: dict[str, float] = {}

    @property
    def traceparent(self) -> str:
        """Of the request's span; empty where it is not traced."""
        return self._traceparent

    def begin(self, name: str) -> None:
        self._open[name] = time.monotonic()

    def end(self, name: str, **attributes: str | int | float | bool) -> None:
        """Nothing where it has not begun, or is over."""
        began = self._open.pop(name, None)
        if began is not None and self._traceparent:
            told = {**self._attributes, **attributes}
            self._tracing.span(self._traceparent, name, began, time.monotonic(), told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in [*self._open]:
            self.end(name, **{"tasuki.cut": True})

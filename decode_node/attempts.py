"""Which prefill nodes each prompt was given to already, until its hand-over is over.

Thread rule: the event loop.
"""

from collections.abc import Collection

from ..engine.messages import RequestId


class Attempts:
    def __init__(self) -> None:
        self._tried: dict[RequestId, list[str]] = {}

    def tried(self, request: RequestId) -> Collection[str]:
        return tuple(self._tried.get(request, ()))

    def begun(self, request: RequestId, target: str) -> None:
        self._tried.setdefault(request, []).append(target)

    def over(self, request: RequestId) -> None:
        """Done, cancelled, or prefilled locally. Idempotent."""
        self._tried.pop(request, None)

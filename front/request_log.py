"""How the last requests ended, by id: what `explain` answers from.

Owns a bounded memory of plain messages; the oldest goes first. Knows no proto. One event loop's
thread.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..engine.messages import Finished, Rejected, RequestId


@dataclass(frozen=True)
class EndedRequest:
    """ended_at: seconds of the log's clock."""

    end: Finished | Rejected
    ended_at: float


class RequestLog:
    def __init__(self, clock: Callable[[], float], capacity: int = 4096) -> None:
        self._clock = clock
        self._capacity = capacity
        self._ended: OrderedDict[RequestId, EndedRequest] = OrderedDict()

    def add(self, end: Finished | Rejected) -> None:
        """An id that is used again names its last request."""
        self._ended[end.request_id] = EndedRequest(end, self._clock())
        self._ended.move_to_end(end.request_id)
        if len(self._ended) > self._capacity:
            self._ended.popitem(last=False)

    def find(self, request_id: str) -> tuple[EndedRequest, float] | None:
        """The request and how many seconds ago it ended; None where it is not remembered."""
        ended = self._ended.get(RequestId(request_id))
        return None if ended is None else (ended, self._clock() - ended.ended_at)

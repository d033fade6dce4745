"""The one registry of a node with front workers: callers' limits, ids, sessions, stored responses,
and how every request ended.

Owns a WorkerSeat for each worker. One event loop's thread. Invariants: a request that was let in
for a worker is accounted like one of this process, however its worker ends; what a worker held of
callers' caps, ids and sessions is given back when it leaves or ends; a worker's End is answered
only when the engine's own end was seen here, so that its client finds the node as it left it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tasuki.engine import messages as m
from tasuki.server.engine_client import EngineClient
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.sessions.turns import Sessions

from . import messages as w
from .seats.node_state import NodeState
from .seats.seat import Send, WorkerSeat


class Registry:
    def __init__(
        self,
        engine: EngineClient,
        header: Callable[[m.RequestId], str],
        sessions: Sessions,
        responses: ResponseStore,
    ) -> None:
        """header: as Tracing.header."""
        self._node = NodeState(engine, header, sessions, responses)
        self._seats: dict[int, WorkerSeat] = {}
        self._chat_tokens: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        """Both of workers that have ended."""

    def seat(self, number: int, send: Send) -> WorkerSeat:
        """For a worker with a number that none had before. send: to it, without waiting."""
        seat = self._seats[number] = WorkerSeat(self._node, send)
        return seat

    def left(self, number: int) -> None:
        """The worker has ended, or can no longer be spoken to."""
        seat = self._seats[number]
        seat.leave()
        self._chat_tokens.update(seat.chat_tokens)
        self._failures.update(seat.failures)
        seat.chat_tokens, seat.failures = {}, {}
        self._forget_if_over(number)

    def gone_from_engine(self, number: int, left: Sequence[m.RequestId]) -> None:
        """The engine takes nothing more from that worker, and has aborted what it left."""
        seat = self._seats.get(number)
        if seat is not None:
            seat.in_engine = frozenset(left)
            self._forget_if_over(number)

    def _forget_if_over(self, number: int) -> None:
        seat = self._seats[number]
        if seat.has_left and (seat.in_engine is not None or not seat.stood):
            del self._seats[number]
            seat.end_what_was_never_sent()

    def abort_asked(self, name: m.RequestId) -> None:
        """The engine was asked to abort it, perhaps before it had the request."""
        seat = self._node.owners.get(name)
        if seat is not None:
            seat.send([w.AbortAsked(name)])

    def chat_tokens(self, own: Mapping[str, int]) -> dict[str, int]:
        """The sum of all workers' and of this process's own."""
        return dict(
            sum((Counter(seat.chat_tokens) for seat in self._seats.values()), self._chat_tokens)
            + Counter(own)
        ) or dict(own)

    def failures(self, own: Mapping[str, int]) -> dict[str, int]:
        """Calls that failed, by kind: the sum of all workers' and of this process's own."""
        found = Counter(own)
        for counts in (self._failures, *(seat.failures for seat in self._seats.values())):
            found.update(counts)
        return dict(found)

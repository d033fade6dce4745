"""The queue's lines compared with a list sorted anew each time."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.engine.scheduling.admission import QueueLimit
from tasuki.engine.scheduling.queues import WaitingQueue
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.waiting import ManualClock

SECONDS = st.sampled_from((None, 1e-300, 0.5, 3.0, 59.0, 1e308)) | st.floats(1e-3, 100)
ASKED = st.tuples(
    st.sampled_from("abc"), st.integers(-1, 1), SECONDS, SECONDS, st.sampled_from((math.inf, 20.0))
)
MOVES = st.lists(
    st.tuples(st.just("add"), ASKED)
    | st.tuples(st.sampled_from(("wait", "begin", "leave", "return")), st.integers(0, 10**6)),
    max_size=60,
)
LIMIT = 60.0


class Naive:
    """A queue as a plain list. number: arrival number. first_due: infinite once this time passed
    during the wait."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waiting: list[dict[str, float | bool | str | Request]] = []
        self._numbers = 0

    def add(self, request: Request, returned: bool, deadline: float, first_due: float) -> None:
        self._numbers += 1
        due = min(self.now + LIMIT, deadline)
        self.waiting.append(
            {
                **{"request": request, "caller": request.caller, "urgency": request.priority},
                **{"new": not returned, "due": due, "first": first_due, "number": self._numbers},
            }
        )

    def pass_time(self) -> set[Request]:
        """Remove and return the requests past their deadline."""
        over = {w["request"] for w in self.waiting if w["due"] <= self.now}
        self.waiting = [w for w in self.waiting if w["request"] not in over]
        for waiting in self.waiting:
            if waiting["first"] <= self.now:
                waiting["first"] = math.inf
        return over  # type: ignore[return-value]

    def line(self, caller: str) -> list[Request]:
        line = [w for w in self.waiting if w["caller"] == caller]
        line.sort(key=lambda w: (w["urgency"], w["new"], min(w["due"], w["first"]), w["number"]))
        return [w["request"] for w in line]  # type: ignore[misc]

    def drop(self, request: Request) -> None:
        self.waiting = [w for w in self.waiting if w["request"] is not request]


@settings(max_examples=300, deadline=None)
@given(MOVES)
def test_lines_are_those_of_a_list_sorted_anew(moves: list[tuple[str, object]]) -> None:
    clock = ManualClock(100.0)
    queue, limit, naive = WaitingQueue(), QueueLimit(LIMIT, clock), Naive()
    away: list[Request] = []
    for move, what in moves:
        if move == "add":
            caller, priority, first, answer, patience = what  # type: ignore[misc]
            request = Request(
                m.RequestId("r"),
                np.ones(3, dtype=np.int32),
                SamplingParams(),
                caller=caller,
                priority=priority,
                patience=patience,
                targets=m.Targets(first, answer=answer),
            )
            limit.entered(request)
            queue.add(request)
            deadline = clock.now + min(patience, math.inf if answer is None else answer)
            naive.add(request, False, deadline, math.inf if first is None else clock.now + first)
        elif move == "wait":
            assert isinstance(what, int)
            clock.now = naive.now = clock.now + what % 70 / 2
        elif move == "return" and away:
            request = away.pop(what % len(away))  # type: ignore[operator]
            limit.entered(request)
            queue.add(request, returned=True)
            assert request.deadline is not None
            naive.add(request, True, request.deadline, request.first_due)
        elif move in ("begin", "leave") and len(queue):
            everybody = list(queue)
            request = everybody[what % len(everybody)]  # type: ignore[operator]
            naive.drop(request)
            if move == "begin":
                queue.begun(request)
                away.append(request)
            else:
                queue.discard(request)
        over = set()
        for request in limit.passed(queue):
            if limit.is_over(request):
                queue.discard(request)
                over.add(request)
            else:
                queue.missed(request)
        assert over == naive.pass_time()
        assert {*queue.lines} == {w["caller"] for w in naive.waiting}
        for caller, line in queue.lines.items():
            assert [place[-1] for place in line] == naive.line(caller)
        if naive.waiting:
            assert limit.idle_seconds is not None
            times = [t for w in naive.waiting for t in (w["due"], w["first"])]
            assert clock.now + limit.idle_seconds <= min(t for t in times if t > clock.now) + 1e-6  # type: ignore[operator, type-var]

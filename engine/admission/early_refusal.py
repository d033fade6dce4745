"""Why a request is not worth beginning: it would not be answered within what it is wanted in.

Looks at those who wait and run, and changes nothing. Thread rule: the engine loop's.
Invariants: only who has just come is refused, never who was taken; where nobody waits a
request is always taken. What nothing is known of is no reason.
"""

import math
from collections.abc import Callable, Collection

from tasuki.engine import messages as m
from tasuki.engine.request import Request

from .first_token_outlook import FirstTokenOutlook
from .seats import Seats


class EarlyRefusal:
    def __init__(self, own: m.Targets, outlook: FirstTokenOutlook, seats: Seats) -> None:
        """own: the node's, of requests that name none."""
        self._own = own
        self._outlook = outlook
        self._seats = seats

    def targets(self, asked: m.Targets) -> m.Targets:
        """What holds for a request that asks for these."""
        return asked.or_else(self._own)

    def reason(
        self,
        request: Request,
        others: Collection[Request],
        elsewhere: Callable[[Request], float],
    ) -> m.RequestError | None:
        """others: all that are not over. elsewhere: as of FirstTokenOutlook.seconds."""
        return self._late(request, elsewhere) or self._slow(request, others)

    def _late(
        self, request: Request, elsewhere: Callable[[Request], float]
    ) -> m.RequestError | None:
        limit, name = min(
            (_or_never(request.targets.first_token), "its target"),
            (_or_never(request.targets.answer), "its target for the whole answer"),
            (request.patience, "its call's deadline"),
        )
        if limit == math.inf:
            return None
        expected = self._outlook.seconds(request, limit, elsewhere(request))
        if expected is None or expected <= limit:
            return None
        return _refusal(
            f"its first token is expected in {expected:.1f} s, {name} is {limit:g} s",
            expected - limit,
        )

    def _slow(self, request: Request, others: Collection[Request]) -> m.RequestError | None:
        """Whether its tokens would come too slowly beside all that are here."""
        target = request.targets.per_token
        if target is None or not others:
            return None
        steps = self._seats.steps
        expected = steps.seconds(min(len(others) + 1, self._seats.count))
        if expected is None or expected <= target:
            return None
        left = sorted(other.tokens_left for other in others)
        ending = min(len(left), len(left) + 1 - steps.fitting(target))
        return _refusal(
            f"a token is expected every {1000 * expected:.1f} ms, its target is "
            f"{1000 * target:g} ms",
            left[ending - 1] * expected,
        )


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _refusal(why: str, retry_after: float) -> m.RequestError:
    return m.RequestError(
        m.ErrorKind.OVERLOADED,
        f"{why}: ask again in {retry_after:.1f} s, or at another node",
        retry_after=retry_after,
    )

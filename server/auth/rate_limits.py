"""Rate limits by caller: requests, and tokens of prompts and answers, in a minute.

Owns an allowance for each caller's name, which refills evenly and never holds more than one
minute's worth. One event loop's thread. Invariants: a request is charged before its body is read,
its prompt before it is computed, its answer as it is written, so that a long answer may leave a
debt that later requests wait for. A refusal takes nothing from an allowance.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tasuki.server.errors import PromptTooLong, RateLimited

from .caller import Caller

_MINUTE = 60.0


@dataclass
class _Allowance:
    """level: what is left, below zero a debt; at `at` seconds of the limits' clock."""

    level: float
    at: float


class _Rate:
    """One unit's allowances. per_minute: 0 sets no limit."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}

    def seconds_until(self, caller: Caller, amount: float) -> float:
        """How long until that much is there; 0 where it is now. Costs nothing."""
        if not self.per_minute:
            return 0.0
        missing = amount - self._refilled(caller).level
        return max(0.0, missing * _MINUTE / self.per_minute)

    def spend(self, caller: Caller, amount: float) -> None:
        if self.per_minute:
            self._refilled(caller).level -= amount

    def _refilled(self, caller: Caller) -> _Allowance:
        now, full = self._clock(), float(self.per_minute)
        allowance = self._allowances.setdefault(caller.name, _Allowance(full, now))
        gained = (now - allowance.at) * full / _MINUTE
        allowance.level = min(full, allowance.level + gained)
        allowance.at = now
        return allowance


class RateLimits:
    def __init__(
        self, requests_per_minute: int, tokens_per_minute: int, clock: Callable[[], float]
    ) -> None:
        """0: no such limit. clock: seconds, monotone."""
        self._requests = _Rate(requests_per_minute, clock)
        self._tokens = _Rate(tokens_per_minute, clock)

    def admit_request(self, caller: Caller, count: int = 1) -> None:
        """Take requests from the caller's allowance, whatever they will ask. Raises RateLimited,
        with the seconds after which they would be admitted; PromptTooLong where they never
        would."""
        per_minute = self._requests.per_minute
        if per_minute and count > per_minute:
            raise PromptTooLong(
                f"prompt holds {count + 1} prompts, and {per_minute} requests are allowed a "
                "minute: send fewer"
            )
        self._take(self._requests, caller, count, "requests")

    def admit_prompt(self, caller: Caller, tokens: int) -> None:
        """Take a prompt from the caller's allowance. Raises RateLimited as above, PromptTooLong."""
        per_minute = self._tokens.per_minute
        if per_minute and tokens > per_minute:
            raise PromptTooLong(
                f"prompt has {tokens} tokens, and {per_minute} are allowed a minute: send less"
            )
        self._take(self._tokens, caller, tokens, "tokens")

    def _take(self, rate: _Rate, caller: Caller, amount: int, unit: str) -> None:
        seconds = rate.seconds_until(caller, amount)
        if seconds > 0:
            raise RateLimited(
                f"{caller.name} has used its {rate.per_minute} {unit} a minute: ask again in "
                f"{seconds:.1f} s",
                seconds,
            )
        rate.spend(caller, amount)

    @property
    def count_tokens(self) -> bool:
        """Whether there is a limit on them, or nobody needs to report an answer's."""
        return self._tokens.per_minute > 0

    def answered(self, caller: Caller, tokens: int) -> None:
        """So many tokens of an answer."""
        self._tokens.spend(caller, tokens)


def no_limits() -> RateLimits:
    return RateLimits(0, 0, lambda: 0.0)

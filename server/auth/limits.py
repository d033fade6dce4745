"""Limits by caller: requests and watches at once, requests and tokens a minute, bytes in memory.

ConcurrencyCaps owns a count for each caller with at least one hold. One event loop's thread.
Invariants: a refused request is not counted; every hold is released exactly once. A key's cap
applies only if there are several keys: the only key takes from no other caller.

RateLimits owns an allowance for each caller's name. An allowance refills evenly and never holds
more than one minute's worth. One event loop's thread. Invariants: a request is charged before its
body is read, its prompt before it is computed, its answer while it is written. A long answer may
therefore leave a debt, and later requests wait for it. A refused request takes nothing from an
allowance.

HeldBytes owns the counts. One event loop's thread. Invariants: the bytes of all holds never exceed
the bound. One of several keys has at most its share, a half of the memory of requests and a quarter
of that of their pictures, so no key can take all of it. A
hold releases all of its bytes when it ends. A refusal changes no count. After a large hold the
process returns its free memory to the system.

submit_bytes() and its siblings return the bytes of memory kept by a request until its reply ends.
Pure functions; any thread. Invariant: each takes time linear in the measured value.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.engine.messages import PromptPicture, Submit
from tasuki.server.errors import (
    Busy,
    InvalidRequest,
    MediaLimit,
    PromptTooLong,
    RateLimited,
    RequestLimit,
    ServerError,
    WatcherLimit,
)
from tasuki.utils.signatures import Clock
from tasuki.utils.system import FreeMemory

from .callers import Caller, Scope


class ConcurrencyCaps:
    def __init__(
        self,
        refusal: type[ServerError],
        what: str,
        per_key: int,
        in_all: int = 0,
        uncapped: frozenset[Scope] = frozenset(),
    ) -> None:
        """Set up the caps. refusal: class of the error raised beyond a cap. what: name of the
        limited thing in messages. per_key, in_all: largest number for one key and for all callers;
        0 sets no cap. uncapped: keys with one of these scopes act for many callers. per_key does
        not apply to them."""
        self._refusal = refusal
        self._what = what
        self._per_key = per_key
        self._in_all = in_all
        self._uncapped = uncapped
        self._held: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: Caller, count: int = 1) -> Iterator[None]:
        """Hold `count` more of the limited things inside `with`. Raises an error of class `refusal`
        beyond a cap."""
        self.check(caller, count)
        self._held[caller.name] += count
        try:
            yield
        finally:
            self._held[caller.name] -= count
            if not self._held[caller.name]:
                del self._held[caller.name]

    def check(self, caller: Caller, count: int = 1) -> None:
        """Raise an error of class `refusal` if the caller may not hold `count` more of the limited
        things now."""
        held = self._held[caller.name]
        if self._is_capped(caller) and held + count > self._per_key:
            if count > 1:
                raise self._refusal(
                    f"{caller.name} asks for {count} at once and has {held} {self._what}, of "
                    f"{self._per_key} that one key may: ask for fewer"
                )
            raise self._refusal(
                f"{caller.name} has {self._per_key} {self._what}, as many as one key may: end one "
                "first"
            )
        if self._in_all and self._held.total() + count > self._in_all:
            raise self._refusal(
                f"this node has {self._in_all} {self._what}, as many as it may: ask again later"
            )

    def _is_capped(self, caller: Caller) -> bool:
        return (
            self._per_key > 0 and caller.is_one_of_many and self._uncapped.isdisjoint(caller.scopes)
        )


_MINUTE = 60.0


@dataclass
class _Allowance:
    """A caller's allowance of requests or tokens. level: the amount left; below zero it is a debt.
    at: time of the last update of `level`, in seconds of the limits' clock."""

    level: float
    at: float


class _Rate:
    """The allowances of all callers, of requests or of tokens. per_minute: amount added to each a
    minute; 0 sets no limit."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}

    def seconds_until(self, caller: Caller, amount: float) -> float:
        """Return the seconds until the amount is available to the caller; 0 if it is now. Take
        nothing from the allowance."""
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
    def __init__(self, requests_per_minute: int, tokens_per_minute: int, clock: Clock) -> None:
        """Set up rate limits. requests_per_minute, tokens_per_minute: limit for each caller; 0 sets
        no limit. clock: seconds, monotone."""
        self._requests = _Rate(requests_per_minute, clock)
        self._tokens = _Rate(tokens_per_minute, clock)

    def admit_request(self, caller: Caller, count: int = 1) -> None:
        """Take `count` requests from the caller's allowance, before their bodies are read. Raises
        RateLimited with the seconds until they would be admitted. Raises PromptTooLong if they
        could never be admitted."""
        per_minute = self._requests.per_minute
        if per_minute and count > per_minute:
            raise PromptTooLong(
                f"prompt holds {count + 1} prompts, and {per_minute} requests are allowed a "
                "minute: send fewer"
            )
        self._take(self._requests, caller, count, "requests")

    def admit_prompt(self, caller: Caller, tokens: int) -> None:
        """Take a prompt's tokens from the caller's allowance. Raises RateLimited and PromptTooLong
        as admit_request() does."""
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
        """Return True if a caller's tokens are limited. If not, the tokens of answers need no
        report."""
        return self._tokens.per_minute > 0

    def answered(self, caller: Caller, tokens: int) -> None:
        """Take the tokens of an answer, or of a part of it, from the caller's allowance, if
        limited. It may become a debt."""
        self._tokens.spend(caller, tokens)


@dataclass(frozen=True)
class CallerLimits:
    """All limits by caller: rates a minute, concurrent requests and watches, and bytes of
    pictures."""

    rates: RateLimits
    requests: ConcurrencyCaps
    watchers: ConcurrencyCaps
    pictures: "HeldBytes"

    @staticmethod
    def none() -> "CallerLimits":
        """Return limits without any effect: nothing is limited."""
        return CallerLimits(
            RateLimits(0, 0, lambda: 0.0),
            ConcurrencyCaps(RequestLimit, "requests in flight", 0),
            ConcurrencyCaps(WatcherLimit, "watches", 0),
            HeldBytes(sys.maxsize, terms=PICTURES),
        )


_MIB = 2**20
_LARGEST_MESSAGES = 16
"""Default bound of all holds, in messages of the largest size. One of several keys may hold eight
such messages."""
_MOST = _LARGEST_MESSAGES * 32 * _MIB
_LARGE = _MIB
"""Size in bytes of a large hold. After a larger hold, free memory is returned to the system."""


@dataclass(frozen=True)
class HoldTerms:
    """Terms of a bound of bytes. what: holders of the bytes, in messages. refusal: class of the
    error while other holds leave too little. shares: parts of the bound, of which one of several
    keys may hold one."""

    what: str = "requests"
    refusal: type[ServerError] = Busy
    shares: int = 2


PICTURES = HoldTerms("pictures of requests", MediaLimit, 4)


class HeldBytes:
    def __init__(
        self, most: int = _MOST, memory: FreeMemory | None = None, terms: HoldTerms | None = None
    ) -> None:
        """Set up the counts. most: bound of the bytes of all holds together. memory: gives free
        memory back; default: the free memory of this process. terms: of all holds."""
        self._most = most
        self._terms = HoldTerms() if terms is None else terms
        self._memory = memory or FreeMemory()
        self._held: Counter[str] = Counter()
        self._total = 0

    @staticmethod
    def for_messages(max_message_bytes: int) -> "HeldBytes":
        """Return a HeldBytes with space for several messages of up to `max_message_bytes`."""
        return HeldBytes(_LARGEST_MESSAGES * max_message_bytes)

    @property
    def total(self) -> int:
        """Return the bytes of all holds of all callers."""
        return self._total

    def of(self, caller: Caller) -> int:
        """Return the bytes of all holds of this caller."""
        return self._held[caller.name]

    @contextmanager
    def hold(self, caller: Caller, size: int = 0) -> Iterator["Hold"]:
        """Count `size` bytes as held by the caller inside `with`, until resize() sets another size.
        Yields the Hold, then releases it. Raises as resize() does."""
        held = Hold(self, caller)
        try:
            held.resize(size)
            yield held
        finally:
            held.resize(0)
            if held.largest > _LARGE:
                self._memory.give_back_later()

    def check(self, caller: Caller, more: int, already: int = 0) -> None:
        """Raise if the caller may not hold `more` bytes now.

        more: number of bytes in addition to all holds. already: bytes of the growing hold itself,
        included in all holds. Raises InvalidRequest if the hold alone exceeds the caller's bound,
        because waiting would not help. Raises Busy, or the terms' refusal, if other holds leave too
        little.
        """
        what, refusal = self._terms.what, self._terms.refusal
        of_caller = self._most // self._terms.shares if caller.is_one_of_many else self._most
        if already + more > of_caller:
            raise InvalidRequest(
                f"the request would hold {_mib(already + more)} of memory, and one may hold "
                f"{_mib(of_caller)}: send less, or ask for less"
            )
        if self._held[caller.name] + more > of_caller:
            raise refusal(
                f"{what} of {caller.name} hold {_mib(self._held[caller.name])} of the "
                f"{_mib(of_caller)} that one key may: ask again when some have ended"
            )
        if self._total + more > self._most:
            raise refusal(
                f"{what} hold {_mib(self._total)} of the {_mib(self._most)} that this node "
                "allows: ask again in a moment, or another node"
            )

    def _add(self, caller: Caller, more: int) -> None:
        self._total += more
        self._held[caller.name] += more
        if not self._held[caller.name]:
            del self._held[caller.name]


class Hold:
    """The bytes of memory held by one request. Made by HeldBytes.hold()."""

    def __init__(self, counts: HeldBytes, caller: Caller) -> None:
        self._counts = counts
        self._caller = caller
        self.size = 0
        """Bytes held now."""
        self.largest = 0
        """Largest number of bytes held so far."""

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on. Raises Busy and InvalidRequest as HeldBytes.check() does;
        the size then stays unchanged. A smaller size is never refused."""
        more = size - self.size
        if more > 0:
            self._counts.check(self._caller, more, self.size)
        self._counts._add(self._caller, more)
        self.size = size
        self.largest = max(self.largest, size)

    def grow(self, more: int) -> None:
        """Hold `more` bytes in addition to those held already. Raises as resize() does."""
        self.resize(self.size + more)

    def check(self, size: int) -> None:
        """Raise if resize(size) would raise. Count nothing."""
        if size > self.size:
            self._counts.check(self._caller, size - self.size, self.size)


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"


ANSWER_BYTES = 1 << 15
"""Estimated bytes of each answer: its tasks, its parser, its reply's head, and the data queued in
its connection."""

_NUMBER_BYTES = 48
"""Estimated bytes of a number in a tuple, with its share of the tuple."""
_PAIR_BYTES = 120
_PICTURE_BYTES = 1500
"""Estimated bytes of a picture's objects in a request: place, digest, descriptions."""
_SCORE_BYTES = 12
"""Bytes of a token's score in the engine's arrays: a token id and a float64, or a logprob and a
rank."""
_WRITTEN_SCORE_BYTES = 200
"""Estimated bytes of one token's logprob in the reply's JSON, while the reply is written."""


def submit_bytes(submit: Submit) -> int:
    """Return the bytes of memory of a request to the engine, and of each of its answers."""
    sampling = submit.sampling
    arrays = submit.prompt.nbytes + submit.prediction.nbytes
    pictures = sum(map(_picture_bytes, submit.pictures))
    numbers = len(submit.marks) + len(sampling.stop_token_ids) + len(sampling.allowed_token_ids)
    numbers += sum(1 + len(word) for word in sampling.bad_words)
    source = 0 if sampling.grammar is None else sys.getsizeof(sampling.grammar.source)
    answers = ANSWER_BYTES * len(submit.answer_ids)
    pairs = _PAIR_BYTES * len(sampling.logit_bias)
    return arrays + pictures + _NUMBER_BYTES * numbers + pairs + source + answers


def _picture_bytes(picture: PromptPicture) -> int:
    """Return the bytes of memory of a picture: its file, or its patches."""
    levels = 0 if picture.levels is None else picture.levels.nbytes
    return _PICTURE_BYTES + levels + media_bytes([picture])


def media_bytes(pictures: Iterable[PromptPicture]) -> int:
    """Return the encoded bytes of pictures."""
    return sum(len(file.data) for one in pictures for file in one.files)


def score_bytes(submit: Submit, written: int = 0) -> int:
    """Return the bytes of memory of the scores of the prompt's tokens; 0 if no scores are asked
    for.

    written: number of copies of the scores in the reply's JSON.
    """
    if submit.prompt_logprobs is None:
        return 0
    scores = len(submit.prompt) * (submit.prompt_logprobs + 1)
    return scores * (_SCORE_BYTES + _WRITTEN_SCORE_BYTES * written)


def ids_bytes(prompts: Sequence[msgspec.Raw] | None) -> int:
    """Return the bytes of memory of prompts' token ids as JSON, and of their copies in a reply.
    prompts None: the ids are not shown, so 0."""
    return 0 if prompts is None else sum(2 * len(bytes(ids)) for ids in prompts)


def value_bytes(value: Any) -> int:
    """Return the bytes of memory of a JSON value's objects. An object referred to several times
    counts several times."""
    size = 0
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop()
        size += sys.getsizeof(found)
        if isinstance(found, dict):
            size += sum(map(sys.getsizeof, found))
            waiting.extend(found.values())
        elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
            waiting.extend(found)
    return size

"""One request of a client and its answer, token by token. Answers are plain values sent between
processes; readers belong to one event loop's thread."""

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass
class Answer:
    """One answer as received by a client. session, turn: the request's origin. asked: number of
    requested tokens. started, ended, times: seconds of the host's monotonic clock, the same for all
    processes. wrong: number of tokens different from the expected ones. error: reason of an early
    end, if any. unanswered: True if bytes stopped arriving before the end. prompt_tokens: length of
    the prompt. known_tokens: its first tokens computed in earlier turns of the session."""

    session: int
    turn: int
    asked: int
    started: float = 0.0
    ended: float = 0.0
    times: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    wrong: int = 0
    cached_tokens: int = 0
    error: str = ""
    unanswered: bool = False
    prompt_tokens: int = 0
    known_tokens: int = 0

    @property
    def whole(self) -> bool:
        return len(self.tokens) == self.asked and not self.wrong and not self.error


class AnswerReader:
    """A reader filling an answer. last: time of the last arrival, or of the request's sending
    before any arrival."""

    def __init__(
        self, answer: Answer, expected: Iterator[int] | None, begun: Callable[[], None]
    ) -> None:
        """Set up a reader. expected: iterator over the answer's known tokens, without end; None if
        unknown. begun: called once, at the first token."""
        self.answer = answer
        self._expected = expected
        self._begun = begun
        self.last = 0.0

    def take(self, now: float, tokens: Sequence[int]) -> None:
        """Record the tokens arriving together at the time `now`."""
        answer = self.answer
        if tokens and not answer.times:
            self._begun()
        for token in tokens:
            answer.times.append(now)
            answer.tokens.append(token)
            if self._expected is not None and next(self._expected) != token:
                answer.wrong += 1


async def answered_or_silent(
    over: "asyncio.Future[None]", reader: AnswerReader, patience: float
) -> None:
    """Wait until `over` is done, or nothing has arrived for `patience` seconds. In the second case
    mark the answer as unanswered."""
    while not over.done():
        left = reader.last + patience - time.monotonic()
        if left <= 0:
            reader.answer.unanswered = True
            reader.answer.error = f"nothing came for {patience:g} s"
            reader.answer.ended = time.monotonic()
            return
        await asyncio.wait({over}, timeout=left)

"""The requests of a simulated fleet and their times: one trace, played once or as several streams.

A stream is the trace under a cache salt of its own, so streams share no prefix. It begins at a
random place of the trace and wraps around. The part before the starting place follows the end under
another salt, so none of it was asked before. The first stream of seed 0 is the trace as recorded. A
request comes at its recorded time, and never before the end of the answer it continues, unless
`arrivals` is `open`. `closed` keeps the recorded pause after the earlier answer instead of the
time. Deterministic.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from tasuki.bench.replay.prompts import Prompts
from tasuki.bench.replay.trace import Trace, TraceRequest

ARRIVALS = ("recorded", "closed", "open")
JITTER_SECONDS = 60.0
"""Largest random delay, in seconds, of a conversation in a stream other than the recorded one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a stream. stream: the stream's number. `index`: place of the request in the
    trace. seconds: its planned virtual time."""

    stream: int
    index: int
    seconds: float


@dataclass(frozen=True)
class _Stream:
    """One stream. first: index of the trace's request beginning the stream. phase: offset of the
    stream's start in the trace, seconds. seed: seed of the random delays; None: no delays."""

    first: int
    phase: float
    seed: int | None


class Workload:
    def __init__(
        self, trace: Trace, streams: int, arrivals: str, token_seconds: float, seed: int
    ) -> None:
        """Set up the workload. streams: number of streams. arrivals: one of ARRIVALS.
        token_seconds: seconds between an answer's tokens."""
        self.trace = trace
        self._prompts = Prompts(trace)
        self._texts: dict[int, NDArray[np.int32]] = {}
        self._arrivals = arrivals
        self._token_seconds = token_seconds
        self._after = _next_turns(trace) if arrivals != "open" else {}
        self._times = [request.timestamp_ms / 1000 for request in trace.requests]
        random = Random(seed)
        self._streams = [
            _Stream(0, 0.0, None) if seed == 0 and number == 0 else self._drawn(random)
            for number in range(streams)
        ]

    @property
    def seconds(self) -> float:
        """Return the length of a stream (of the trace) in seconds."""
        return self._times[-1]

    def request(self, turn: Turn) -> TraceRequest:
        return self.trace.requests[turn.index]

    def tokens(self, turn: Turn) -> NDArray[np.int32]:
        """Return the token ids of a turn's prompt and answer, [tokens] int32. Read-only, because
        turns of a conversation share memory."""
        longest = self._prompts.longest(turn.index)
        text = self._texts.get(longest)
        if text is None:
            text = self._texts[longest] = self._prompts.tokens(longest)
        request = self.request(turn)
        return text[: request.prompt_tokens + request.answer_tokens]

    def prompt(self, turn: Turn) -> NDArray[np.int32]:
        return self.tokens(turn)[: self.request(turn).prompt_tokens]

    def salt(self, turn: Turn) -> bytes:
        again = turn.index < self._streams[turn.stream].first
        number = 2 * turn.stream + again
        return number.to_bytes(4, "big") if number else b""

    def session(self, turn: Turn) -> tuple[int, int]:
        """Return the stream's number and the conversation's id. If the trace names no conversation,
        the id of the prompt's second block serves."""
        request = self.request(turn)
        if request.conversation is not None:
            return turn.stream, request.conversation[0]
        blocks = request.block_ids
        return turn.stream, int(blocks[min(1, len(blocks) - 1)])

    def first_turns(self) -> Iterator[Turn]:
        """Yield each conversation's first turn in its stream, unordered; every turn if `open`."""
        before = {after: index for index, after in self._after.items()}
        for number, stream in enumerate(self._streams):
            for index in range(len(self._times)):
                continued = before.get(index)
                if continued is None or continued < stream.first <= index:
                    yield self._turn(number, index)

    def next_turn(self, turn: Turn, ended: float) -> tuple[Turn, float] | None:
        """Return the conversation's next turn after `turn`, and its time. Returns None if there is
        none. ended: time of the end of the turn's answer."""
        index = self._after.get(turn.index)
        if index is None or turn.index < self._streams[turn.stream].first <= index:
            return None
        following = self._turn(turn.stream, index)
        if self._arrivals == "recorded":
            return following, max(following.seconds, ended)
        answered = turn.seconds + self.answer_seconds(turn)
        return following, ended + max(0.0, following.seconds - answered)

    def answer_seconds(self, turn: Turn) -> float:
        return self.request(turn).answer_tokens * self._token_seconds

    def _drawn(self, random: Random) -> _Stream:
        phase = random.uniform(0, self._times[-1])
        return _Stream(bisect_left(self._times, phase), phase, random.getrandbits(32))

    def _turn(self, number: int, index: int) -> Turn:
        stream = self._streams[number]
        seconds = self._times[index] - stream.phase
        if index < stream.first:
            seconds += self._times[-1]
        conversation = self.trace.requests[index].conversation
        if stream.seed is not None and conversation is not None:
            drawn = Random(stream.seed * 1_000_003 + conversation[0])
            seconds += drawn.uniform(0, JITTER_SECONDS)
        return Turn(number, index, seconds)


def _next_turns(trace: Trace) -> dict[int, int]:
    """Return a map from a request's index to the index of the next request of its conversation, if
    any."""
    latest: dict[tuple[int, int], int] = {}
    found = {}
    for index, request in enumerate(trace.requests):
        if request.conversation is None:
            continue
        if (before := latest.get(request.conversation)) is not None:
            found[before] = index
        latest[request.conversation] = index
    return found

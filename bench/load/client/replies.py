"""The replies of a session's turns: their lengths, and the earliest time of the next turn."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, pairwise
from pathlib import Path

from tasuki.bench.errors import ReplayError
from tasuki.bench.replay.trace import TraceRequest, load_trace

_TOOL_CALL = "tool_use"


@dataclass(frozen=True)
class Reply:
    """tokens: length of the answer. next_after: least seconds from sending this turn to sending the
    next one."""

    tokens: int
    next_after: float = 0.0


@dataclass(frozen=True)
class Replies:
    """A sequence of replies, repeated without end. Immutable."""

    replies: tuple[Reply, ...]

    def of_session(self, session: int, sessions: int) -> Iterator[Reply]:
        """Yield the replies of one session, without end. Sessions begin at places evenly spread
        over the sequence. sessions: their number."""
        begin = session * len(self.replies) // sessions
        return cycle(chain(self.replies[begin:], self.replies[:begin]))


def alike(tokens: int) -> Replies:
    """Return replies of one length, each followed by the next turn at once."""
    return Replies((Reply(tokens),))


def recorded_replies(path: Path, tokens: int, faster: float) -> Replies:
    """Read the replies of a trace (`bench.replay.trace`), conversation by conversation. Lengths are
    scaled to the mean `tokens`. A turn after a tool call follows as long after the turn before as
    in the recording, divided by `faster`; any other follows at once. Raises ReplayError."""
    trace = load_trace(path)
    found: dict[tuple[int, int], list[TraceRequest]] = {}
    for request in trace.requests:
        if request.conversation is not None and request.answer_tokens:
            found.setdefault(request.conversation, []).append(request)
    if not found:
        raise ReplayError(
            f"{path}: names no session_id, so the order of turns is unknown: give a trace of "
            "sessions"
        )
    recorded = list(chain.from_iterable(found.values()))
    scale = tokens * len(recorded) / sum(request.answer_tokens for request in recorded)
    return Replies(
        tuple(
            Reply(max(1, round(request.answer_tokens * scale)), seconds / faster)
            for turns in found.values()
            for request, seconds in zip(turns, _intervals(turns), strict=True)
        )
    )


def _intervals(turns: list[TraceRequest]) -> list[float]:
    """Return the seconds from each turn of a conversation to the next one; 0 without a tool
    call."""
    intervals = [
        max(0, after.timestamp_ms - before.timestamp_ms) / 1e3 if before.stop == _TOOL_CALL else 0.0
        for before, after in pairwise(turns)
    ]
    return [*intervals, 0.0]

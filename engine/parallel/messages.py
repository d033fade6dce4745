"""What the leader and a follower send each other, and the frames that carry it.

Plain, immutable values; a plan travels as ForwardPlan.encode() made it.
"""

from collections.abc import Sequence
from typing import Any

from tasuki.engine.apart.codec import FrameReader, framed, reader_of, values_of
from tasuki.engine.messages.types import Message


class Join(Message):
    """To a follower that has loaded: every rank has so many slabs, and all meet now."""

    slabs: int


class RunPlan(Message):
    """To a follower: the next plan."""

    plan: bytes


class EndRank(Message):
    """To a follower: nothing comes any more."""


class Beat(Message):
    """The follower's process runs."""


class Loaded(Message):
    """The follower has its weights, and memory for so many slabs."""

    slabs: int


class Joined(Message):
    """The follower is connected to all ranks and waits for plans."""


class Ticked(Message):
    """The follower's step counter is at `value`, and a forward has ended with it or not."""

    value: int
    ended: bool


class PlanRun(Message):
    """The follower has run the plan of that number, which drew tokens of that checksum."""

    number: int
    checksum: int


class RankFailed(Message):
    """The follower ends. reason: one line."""

    reason: str


_KINDS: tuple[type[Message], ...] = (
    *(Join, RunPlan, EndRank),
    *(Beat, Loaded, Joined, Ticked, PlanRun, RankFailed),
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}
_READ = tuple(map(reader_of, _KINDS))


def frame(message: Message) -> bytes:
    return bytes(framed([(_NUMBER_OF[type(message)], message)]))


def frame_reader() -> FrameReader:
    """Of what comes from the other end. Its take() raises BrokenFrame."""
    return FrameReader(_messages)


def _messages(body: bytes) -> list[Any]:
    found: Sequence[tuple[int, Any]] = values_of(body, _READ)
    return [message for _, message in found]

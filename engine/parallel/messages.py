"""Messages between a leader and its followers, their frames and their checksum.

Plain, immutable values and pure functions.
"""

from zlib import crc32

import numpy as np

from tasuki.engine.apart.frames import FrameReader, framed
from tasuki.engine.messages.types import Message, reader_of
from tasuki.engine.runner.base import DrawnTokens
from tasuki.engine.tiers.copy_job import CopyJob, JobEnd


def checksum(drawn: DrawnTokens) -> int:
    """What a rank drew, as one number: ranks whose numbers differ compute different things.

    Of all tokens and drafts of a forward.
    """
    behind = {row: [token.token for token in found] for row, found in drawn.behind.items()}
    total = crc32(drawn.tokens.astype("<i4", copy=False).tobytes())
    for kind, lists in enumerate((behind, drawn.guessed)):
        for row in sorted(lists):
            numbers = [kind, row, len(lists[row]), *lists[row]]
            total = crc32(np.array(numbers, dtype="<i4").tobytes(), total)
    return total


START_SECONDS = 120.0
"""Of silence, at least, until a rank waits for plans: an interpreter starts and imports torch, and
what reads a checkpoint may hold the interpreter's lock, on a busy machine."""


class Join(Message):
    """To a follower that has loaded: every rank has so many slabs, and so many in host memory
    below, and all meet now. weights: their digest, where a disk is to know it."""

    slabs: int
    host_slabs: int = 0
    weights: str = ""


class RunPlan(Message):
    """To a follower: the next plan."""

    plan: bytes


class EndRank(Message):
    """To a follower: nothing comes any more."""


class BeginCopy(Message):
    """To a follower: between its arena and its tier of that number, behind the plans before."""

    tier: int
    job: CopyJob


class CancelCopy(Message):
    """To a follower: nobody wants what it brings any more. It ends all the same."""

    tier: int
    transfer: int


class EmptyTier(Message):
    """To a follower: nothing that was kept is of use any more."""

    tier: int


class CopyEnded(Message):
    """A copy has ended on that rank, and touches nothing any more."""

    tier: int
    transfer: int
    end: JobEnd


TierMessage = BeginCopy | CancelCopy | EmptyTier


class Beat(Message):
    """The follower's process runs. exchanges: as its Collectives.begun. worked: processor time that
    it has had, seconds."""

    exchanges: int = 0
    worked: float = 0.0


class Loaded(Message):
    """The follower has its weights, and memory for so many slabs."""

    slabs: int


class Joined(Message):
    """The follower is connected to all ranks and waits for plans. kept: what stands whole on its
    disk from before, as of kept_of()."""

    kept: bytes = b""


class Ticked(Message):
    """The follower's step counter is at `value`, and a forward has ended with it or not."""

    value: int
    ended: bool


class PlanRun(Message):
    """The follower has run the plan of that number, and all before. checksum: of the tokens that it
    drew, if it drew any."""

    number: int
    checksum: int | None


class RankFailed(Message):
    """The follower ends. reason: one line."""

    reason: str


_KINDS: tuple[type[Message], ...] = (
    *(Join, RunPlan, EndRank),
    *(BeginCopy, CancelCopy, EmptyTier, CopyEnded),
    *(Beat, Loaded, Joined, Ticked, PlanRun, RankFailed),
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}
_READ = tuple(map(reader_of, _KINDS))


def frame(message: Message) -> bytes:
    """What the leader and a follower send each other, and the frames that carry it.

    Plain, immutable values; a plan travels as ForwardPlan.encode() made it.
    """
    return bytes(framed([(_NUMBER_OF[type(message)], message)]))


def frame_reader() -> FrameReader:
    """Of what comes from the other end. Its take() raises BrokenFrame."""
    return FrameReader(_READ)

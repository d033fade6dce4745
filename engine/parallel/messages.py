"""Messages between a leader rank and its followers, their frames and a checksum of sampled
tokens."""

from zlib import crc32

import numpy as np

from tasuki.engine.apart.frames import FrameReader, framed
from tasuki.engine.messages.types import Message, reader_of
from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.tiers.copy_job import CopyJob, JobEnd


def checksum(sampled: SampledTokens) -> int:
    """Return one number for all sampled tokens and drafts of a forward. Different numbers show
    ranks with different results."""
    behind = {row: [token.token for token in found] for row, found in sampled.behind.items()}
    total = crc32(sampled.tokens.astype("<i4", copy=False).tobytes())
    for kind, lists in enumerate((behind, sampled.guessed)):
        for row in sorted(lists):
            numbers = [kind, row, len(lists[row]), *lists[row]]
            total = crc32(np.array(numbers, dtype="<i4").tobytes(), total)
    return total


START_SECONDS = 120.0
"""Shortest heartbeat timeout, in seconds, before a rank is ready for plans. On a busy machine an
interpreter starts and imports torch, and reading a checkpoint may hold the interpreter lock."""


class Join(Message):
    """To a follower with loaded weights: connect to all ranks now. slabs: number of slabs
    (fixed-size parts) of every rank's arena. host_slabs: number of slabs of its host tier. weights:
    digest of the weights, if a disk tier needs it."""

    slabs: int
    host_slabs: int = 0
    weights: str = ""


class RunPlan(Message):
    """To a follower: run the next plan."""

    plan: bytes


class EndRank(Message):
    """To a follower: end your process; no more messages follow."""


class BeginCopy(Message):
    """To a follower: begin a copy between its arena and the tier with this number, after the
    earlier plans."""

    tier: int
    job: CopyJob


class CancelCopy(Message):
    """To a follower: cancel a copy between its arena and a tier. Its end is still reported."""

    tier: int
    transfer: int


class EmptyTier(Message):
    """To a follower: invalidate all stored data of a tier."""

    tier: int


class CopyEnded(Message):
    """From a follower: a copy of this rank has ended, and touches no memory any more."""

    tier: int
    transfer: int
    end: JobEnd


TierMessage = BeginCopy | CancelCopy | EmptyTier


class BeginPicture(Message):
    """To a follower: begin a picture in your tower. rows, columns: of its patches. merge: patches
    of a token's side. values: levels of a patch. levels: of all patches, uint8."""

    rows: int
    columns: int
    merge: int
    values: int
    levels: bytes


class ForgetPicture(Message):
    """To a follower: give up the picture in your tower."""


class RunBlocks(Message):
    """To a follower: take part in a round of blocks, with a picture or without one."""


class ShareRows(Message):
    """To a follower: exchange the rows of the picture of `rank`. tokens: number of rows."""

    rank: int
    tokens: int


class KeepRows(Message):
    """To a follower: keep the rows exchanged last under this number."""

    number: int


class DropRows(Message):
    """To a follower: drop the rows with this number."""

    number: int


PictureMessage = BeginPicture | ForgetPicture | RunBlocks | ShareRows | KeepRows | DropRows


class StageWeights(Message):
    """To a follower: stage its part of the folder's weights, beside the plans."""

    folder: str


class CommitWeights(Message):
    """To a follower: run later plans with the weights staged last."""


class DropWeights(Message):
    """To a follower: drop the weights staged last."""


WeightsMessage = StageWeights | CommitWeights | DropWeights


class WeightsStaged(Message):
    """From a follower: it has ended staging. refused: the reason against it; empty: none."""

    refused: str = ""


class Beat(Message):
    """From a follower: a heartbeat of its process. exchanges: number of exchanges begun
    (Collectives.begun). worked: processor time of the process, in seconds."""

    exchanges: int = 0
    worked: float = 0.0


class Loaded(Message):
    """From a follower: it has its weights, and memory for `slabs` slabs (fixed-size parts) of an
    arena."""

    slabs: int


class Joined(Message):
    """From a follower: it is connected to all ranks and waits for plans. kept: identities of the
    complete states on its disk from an earlier run, from kept_of()."""

    kept: bytes = b""


class Ticked(Message):
    """From a follower: its step counter has reached `value`. ended: a forward ended with it."""

    value: int
    ended: bool


class PlanRun(Message):
    """From a follower: it has run the plan `number`, and all earlier ones. checksum: checksum of
    the plan's sampled tokens; None without sampled tokens."""

    number: int
    checksum: int | None


class RankFailed(Message):
    """From a follower: it ends because of an error. reason: the error in one line."""

    reason: str


_KINDS: tuple[type[Message], ...] = (
    *(Join, RunPlan, EndRank),
    *(BeginCopy, CancelCopy, EmptyTier, CopyEnded),
    *(BeginPicture, ForgetPicture, RunBlocks, ShareRows, KeepRows, DropRows),
    *(StageWeights, CommitWeights, DropWeights, WeightsStaged),
    *(Beat, Loaded, Joined, Ticked, PlanRun, RankFailed),
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}
_READ = tuple(map(reader_of, _KINDS))


def frame(message: Message) -> bytes:
    """Return the frame (the bytes on the socket) of a message between the leader and a follower.

    Messages are plain, immutable values. A plan travels as the bytes of ForwardPlan.encode().
    """
    return bytes(framed([(_NUMBER_OF[type(message)], message)]))


def frame_reader() -> FrameReader:
    """Return a reader of frames between the leader and a follower. Its take() raises BrokenFrame
    for invalid data."""
    return FrameReader(_READ)

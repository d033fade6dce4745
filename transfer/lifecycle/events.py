"""Events for one side of a transfer, other than a peer's messages: from engines, the byte
transport, streams and time.

Plain values; messages.py has the messages of a peer. Pure.
"""

from dataclasses import dataclass
from typing import TypeAlias

from tasuki.transfer.reports import Drain, SendReport

from .actions import Action, Loss
from .fence import ALIVE, FenceReason, WriterFacts
from .messages import Message, Payload


@dataclass(frozen=True)
class Happening:
    """Event for a side of a transfer, other than a peer's message."""


@dataclass(frozen=True)
class Brought(Happening):
    """Event from an engine or the byte transport, with the engine's payload."""

    payload: Payload = None


@dataclass(frozen=True)
class Reasoned(Happening):
    """Event with a reason for logs and errors."""

    reason: str


Event: TypeAlias = Message | Happening


class Begin(Happening):
    """First event of a transfer's side: it begins the transfer."""


@dataclass(frozen=True)
class Look(Happening):
    """Check of the deadlines, because time has passed.

    progress: number of chunks moved in this transfer. pulled: number of chunks moved in its pull;
    None without one. pieces: number of pieces of pictures moved for this transfer. others: number
    of chunks moved in the connection's other transfers. writer: facts about the peer as the writer
    of this transfer.
    """

    progress: int = 0
    pulled: int | None = None
    others: int = 0
    pieces: int = 0
    writer: WriterFacts = ALIVE


@dataclass(frozen=True)
class Failed(Happening):
    """Failure of an action; those behind it were dropped. is_defect: True if unforeseen."""

    action: Action
    reason: str
    is_defect: bool


class Broke(Reasoned):
    """Unforeseen error in a task of the transfer."""


class Stopped(Reasoned):
    """Decision of this node to give the transfer up, for example at shutdown."""


class StreamBroke(Reasoned):
    """End of the transfer's stream: no more messages of the peer come on it."""


# Events of a receiver.


class Declined(Happening):
    """Engine's answer to WantGrant: it has no memory for the transfer now."""


class Cancelled(Happening):
    """Cancellation of the transfer by the engine; the engine needs no report of it."""


@dataclass(frozen=True)
class GivenUp(Happening):
    """Decision of this node to wait no longer, for a reason outside the transfer."""

    reason: str
    loss: Loss


@dataclass(frozen=True)
class Verified(Happening):
    """Result of comparing the digests. failure: text of the difference; None: they match. differs:
    True if a digest differs, False if chunks are missing."""

    failure: str | None = None
    differs: bool = False


class Prepared(Brought):
    """Report of the arrived bytes, read from the sender's final status."""


@dataclass(frozen=True)
class DrainAnswered(Happening):
    """Sender's report of its drain (the end of its posted writes), by a call's reply or a lease
    renewal. drain: None if the call was not answered."""

    drain: Drain | None


@dataclass(frozen=True)
class Severed(Happening):
    """End of breaking the writer's endpoints: none of its bytes can arrive any more. reason:
    evidence for it."""

    reason: FenceReason


# Events of a sender.


class Met(Happening):
    """Arrival of the gateway's call for this transfer. Its prompt equals the decode node's."""


class Missed(Happening):
    """Timeout: the gateway's call for this transfer did not come in time."""


class Leased(Happening):
    """Engine's notice: it has allocated the prompt's memory and is about to start."""


@dataclass(frozen=True)
class Waits(Happening):
    """Report of prompts before this one in the engine's queue. seconds: their prefill time."""

    seconds: float


@dataclass(frozen=True)
class Moved(Happening):
    """Notice of the prompt's new position in the engine's queue."""

    position: int


class Announced(Brought):
    """Engine's message between the receiver's destination and the final status. It has the first
    token, or lets all chunks be sent."""


@dataclass(frozen=True)
class Refusal(Happening):
    """Rejection of the transfer by the engine, or failure of its forward. is_late: True if the
    prompt waited too long."""

    reason: str
    is_late: bool = False
    payload: Payload = None


class Pinned(Brought):
    """Engine's answer about a pull: it has pinned the wanted state (holds it in the cache); the
    payload gives its place."""


class PullWanted(Brought):
    """Engine's wish to pull the state offered by a hand-over's receiver, as in the payload."""


class MediaWanted(Brought):
    """Engine's wish for the pictures in the payload, before anything is allocated."""


class MediaCame(Brought):
    """Arrival of every wanted picture, checked; the payload has their bytes."""


class ReceiverLost(Happening):
    """Loss of the receiver: its stream or connection has ended, and it gets no more messages."""


class Opened(Happening):
    """Sender's notice: from now on layer chunks may be sent to the destination."""


@dataclass(frozen=True)
class Sent(Happening):
    """End of sending: every layer chunk is flushed. report: their bytes, digests, times."""

    report: SendReport


@dataclass(frozen=True)
class SendBroke(Happening):
    """Failure of the byte transport for this transfer. drain: how its posted writes ended.
    endpoint_failed: True if the peer's other transfers would fail too."""

    reason: str
    drain: Drain
    endpoint_failed: bool


@dataclass(frozen=True)
class Drained(Happening):
    drain: Drain

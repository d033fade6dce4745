"""Events other than messages, from engines, byte transport, streams and time to a transfer's side.

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
    """Event other than a message."""


@dataclass(frozen=True)
class Brought(Happening):
    """Event from an engine or the byte transport; the payload is the engine's."""

    payload: Payload = None


@dataclass(frozen=True)
class Reasoned(Happening):
    """Event with a reason."""

    reason: str


Event: TypeAlias = Message | Happening


class Begin(Happening):
    """First event of a side."""


@dataclass(frozen=True)
class Look(Happening):
    """A look: time has passed.

    progress: number of chunks moved in this room. pulled: the same for the room's pull; None
    without one. others: number of chunks of the connection's other rooms. writer: facts about the
    writer into this room.
    """

    progress: int = 0
    pulled: int | None = None
    others: int = 0
    writer: WriterFacts = ALIVE


@dataclass(frozen=True)
class Failed(Happening):
    """An action failed, and the actions behind it were dropped. is_defect: the error was
    unforeseen."""

    action: Action
    reason: str
    is_defect: bool


class Broke(Reasoned):
    """An unforeseen error in a task of the room."""


class Stopped(Reasoned):
    """This node gives the transfer up."""


class StreamBroke(Reasoned):
    """Nothing more comes on the room's stream."""


# Events of a receiver.


class Declined(Happening):
    """The engine has no memory for the grant now."""


class Cancelled(Happening):
    """The engine cancelled the room, and needs no report of it."""


@dataclass(frozen=True)
class GivenUp(Happening):
    """This node stops waiting, for a reason outside the room."""

    reason: str
    loss: Loss


@dataclass(frozen=True)
class Verified(Happening):
    """The digests were compared. failure: why they do not match; None: they match. differs: True if
    a digest differs, False if chunks are missing."""

    failure: str | None = None
    differs: bool = False


class Prepared(Brought):
    """The report of the arrived bytes, read from the final status."""


@dataclass(frozen=True)
class DrainAnswered(Happening):
    """A call or a renewal reported the end of the drain. drain: None if the call was not
    answered."""

    drain: Drain | None


@dataclass(frozen=True)
class Severed(Happening):
    """No more bytes of the writer can arrive."""

    reason: FenceReason


# Events of a sender.


class Met(Happening):
    """The gateway's call for the room is here too, with the same prompt."""


class Missed(Happening):
    """The gateway's call did not come in time."""


class Leased(Happening):
    """The engine holds the allocation and is about to start."""


@dataclass(frozen=True)
class Waits(Happening):
    """Other prompts are before the room in the engine's queue. seconds: their prefill time."""

    seconds: float


@dataclass(frozen=True)
class Moved(Happening):
    """The room's place in the engine's queue."""

    position: int


class Announced(Brought):
    """The engine's message between grant and final status: the first token, or the permission for
    all chunks to leave."""


@dataclass(frozen=True)
class Refusal(Happening):
    """The engine rejects the room, or its forward failed. is_late: the prompt waited too long."""

    reason: str
    is_late: bool = False
    payload: Payload = None


class Pinned(Brought):
    """The engine holds the pulled state; the payload gives its place."""


class PullWanted(Brought):
    """The engine pulls the state offered by the receiver."""


class ReceiverLost(Happening):
    """The stream or the connection is over: the receiver gets no more messages."""


class Opened(Happening):
    """Layer chunks may leave."""


@dataclass(frozen=True)
class Sent(Happening):
    """Every layer chunk is flushed."""

    report: SendReport


@dataclass(frozen=True)
class SendBroke(Happening):
    """The byte transport ended the room. endpoint_failed: the peer's other rooms would fail too."""

    reason: str
    drain: Drain
    endpoint_failed: bool


@dataclass(frozen=True)
class Drained(Happening):
    drain: Drain

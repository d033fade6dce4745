"""Actions of a transfer's side: its requests to its driver.

Plain values. A driver performs them in order. The first failed action drops the rest, and comes
back as the event Failed. Some are answered by an event, named in their docstring. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.reports import ChunkDigest

from .fence import FenceReason
from .messages import Message, Payload


@dataclass(frozen=True)
class Action:
    """Request to a driver."""


@dataclass(frozen=True)
class HandOn(Action):
    """Action with an opaque payload to pass on."""

    payload: Payload


class Loss(Enum):
    """Reason why a receiver lost its room, by the names of an engine's LossCause."""

    STREAM = "the peer ended it or contradicts itself"
    PROTOCOL = "the peer broke the protocol, or this node is defective"
    MISSING = "some sent bytes have not arrived"
    DIGEST = "the arrived bytes differ from the sent bytes"
    STALLED = "nothing moved for too long"
    QUEUE_TIMEOUT = "the sender did not begin it in time"
    NO_ROOM = "this node has no memory for it"
    MOVED = "another sender begins it sooner"


@dataclass(frozen=True)
class Say(Action):
    """Send the message on the room's stream; dropped if the stream is over."""

    message: Message


# Actions of a receiver.


class WantGrant(Action):
    """Ask the engine for pages and a slot: Grant, Declined or Cancelled answers."""


@dataclass(frozen=True)
class Expect(Action):
    """Count the layer chunks arriving in these ids."""

    destination: Destination


class Forget(Action):
    """Stop counting chunks, and decode no more encoded ones into the arena."""


@dataclass(frozen=True)
class NoteWait(Action):
    """Note the seconds of prefill before the room. may_move: the prompt may still go to another
    node."""

    seconds: float
    may_move: bool


class TellReady(HandOn):
    """Tell the engine of the first token's arrival."""


class TellHeld(Action):
    """Tell the engine of the wanted prefix: the sender holds it, and its bytes follow. An engine
    need not act."""


class TellRefused(HandOn):
    """Tell the engine of the sender's rejection: nothing was granted."""


@dataclass(frozen=True)
class TellLost(Action):
    """Report the loss of the room. Granted ids stay in quarantine until TellFenced."""

    reason: str
    loss: Loss


@dataclass(frozen=True)
class Verify(Action):
    """Compare the arrived bytes with `sent`. Verified answers."""

    sent: Sequence[ChunkDigest]


class Prepare(HandOn):
    """Read the report of the final status. Prepared answers."""


class Commit(HandOn):
    """Commit: all bytes arrived and match, so the granted ids belong to the engine."""


class CallForDrain(Action):
    """Ask for the drain by a call of its own. DrainAnswered answers."""


class GiveUp(Action):
    """End the connection, because no drain was acknowledged for too long. The lease then runs
    out."""


@dataclass(frozen=True)
class Sever(Action):
    """Break all endpoints of the writer with bytes possibly under way, and take in the arrived
    ones. Severed answers."""

    reason: FenceReason


@dataclass(frozen=True)
class TellFenced(Action):
    """Report the fence: the writer can write no more, so the granted ids are free."""

    reason: FenceReason


class ServePull(HandOn):
    """Send the sender's pull of this room."""


# Actions of a sender.


class Reserve(Action):
    """Give the engine the prompt, or the fetched or pulled prefix. Leased, Pinned or Refusal
    answers."""


@dataclass(frozen=True)
class Open(Action):
    """Let layer chunks leave to these ids. Opened answers."""

    destination: Destination


class Start(HandOn):
    """Let the engine compute, or plan the chunks it holds; the payload is the grant's."""


class Plan(HandOn):
    """Let all chunks of the pinned state leave."""


class DrainNow(Action):
    """Post nothing more. Drained answers once all posted writes have ended."""


class BeginPull(HandOn):
    """Pull the state offered by the receiver."""


# Actions of both sides.


@dataclass(frozen=True)
class EndPull(Action):
    """Wait for the room's pull no longer."""

    reason: str

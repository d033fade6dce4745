"""Actions of one side of a transfer: requests from its pure state machine to its driver.

Plain values. A driver performs them in order. After a failed action the rest is dropped, and the
event Failed is returned to the machine. A docstring names the event answering its action, if there
is one. Pure.
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
    """Request of a transfer's side to its driver."""


@dataclass(frozen=True)
class HandOn(Action):
    """Action with a payload. The state machine passes the payload on unread."""

    payload: Payload


class Loss(Enum):
    """Reason why a receiver lost its transfer, with the names of the engine's LossCause."""

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
    """Send the message to the peer on the transfer's stream; drop it if the stream has ended."""

    message: Message


# Actions of a receiver.


class WantGrant(Action):
    """Ask this node's engine for destination pages and a slot. The event Grant, Declined or
    Cancelled answers."""


@dataclass(frozen=True)
class Expect(Action):
    """Begin to count the layer chunks arriving in the destination's pages and slot."""

    destination: Destination


class Forget(Action):
    """Stop counting the transfer's layer chunks, and decode no more encoded ones into the arena."""


@dataclass(frozen=True)
class NoteWait(Action):
    """Record how much prefill is before this transfer in the sender's queue. seconds: its duration.
    may_move: True if the prompt may still go to another prefill node."""

    seconds: float
    may_move: bool


class TellReady(HandOn):
    """Tell the engine of the first token's arrival; the payload has it."""


class TellHeld(Action):
    """Tell the engine, which may ignore it: the sender holds the wanted prefix; bytes follow."""


class TellRefused(HandOn):
    """Tell the engine: the sender rejected the transfer, before any memory was granted."""


@dataclass(frozen=True)
class TellLost(Action):
    """Tell the engine: the transfer is lost. Granted pages and slot stay in quarantine until
    TellFenced."""

    reason: str
    loss: Loss


@dataclass(frozen=True)
class Verify(Action):
    """Compare the arrived bytes with the digests in `sent`. The event Verified answers."""

    sent: Sequence[ChunkDigest]


class Prepare(HandOn):
    """Read the report in the sender's final status (the payload). The event Prepared answers."""


class Commit(HandOn):
    """Commit the transfer: all bytes match, so granted pages and slot belong to the engine."""


class CallForDrain(Action):
    """Ask the sender for the drain (the end of its posted writes) by a separate call. The event
    DrainAnswered answers."""


class GiveUp(Action):
    """End the connection to a writer without a drain for too long. Its lease then runs out."""


@dataclass(frozen=True)
class Sever(Action):
    """Break all endpoints of the writer with bytes possibly under way, and take in the arrived
    bytes. The event Severed answers. reason: evidence for the end of its writes."""

    reason: FenceReason


@dataclass(frozen=True)
class TellFenced(Action):
    """Tell the engine: the writer can write no more, so the granted pages and slot are free."""

    reason: FenceReason


class ServePull(HandOn):
    """Begin to send the state pulled by the prefill node, as the payload describes it."""


class SendMedia(HandOn):
    """Begin to send pictures of the prompt to the sender, by a call of its own; the payload names
    them."""


# Actions of a sender.


class Reserve(Action):
    """Give the engine the prompt to compute, or the wanted prefix to pin. The event Leased, Pinned
    or Refusal answers."""


@dataclass(frozen=True)
class Open(Action):
    """Allow layer chunks to be sent to the destination's pages and slot. The event Opened
    answers."""

    destination: Destination


class Start(HandOn):
    """Let the engine compute the prompt, or plan the chunks of a held prefix. The payload comes
    from the receiver's destination message."""


class Plan(HandOn):
    """Plan all layer chunks of the pinned state (held in the cache), so they can be sent."""


class TakeMedia(HandOn):
    """Give the engine the wanted pictures; the payload has their bytes."""


class DrainNow(Action):
    """Post nothing more. The event Drained answers once all posted writes have ended."""


class BeginPull(HandOn):
    """Begin to pull the state offered by the receiving decode node, before the prefill."""


# Actions of both sides.


@dataclass(frozen=True)
class EndPull(Action):
    """End this hand-over's pull (a state sent from the decode node to the prefill node), without
    waiting for its bytes."""

    reason: str

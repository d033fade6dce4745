"""Actions of a transfer's side: what it asks of the driver that runs it.

Plain values. A driver performs them in order; the first that fails drops the rest, and comes back
as the event Failed. Some are answered by an event, as their text says. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tasuki.transfer.reports import WindowDigest
from tasuki.transfer.windows.window import Destination

from .fence import FenceReason
from .messages import Message, Payload


@dataclass(frozen=True)
class Action:
    """What a driver is to do."""


@dataclass(frozen=True)
class HandOn(Action):
    """What the payload is handed on for, unseen."""

    payload: Payload


class Loss(Enum):
    """Why a receiver lost its room, by the names that an engine's LossCause has."""

    STREAM = "the peer ended it or contradicts itself"
    PROTOCOL = "the peer broke the protocol, or this node is defective"
    MISSING = "not all that was sent has landed"
    DIGEST = "what landed is not what was sent"
    STALLED = "nothing moved for too long"
    QUEUE_TIMEOUT = "the sender did not begin it in time"
    NO_ROOM = "this node has no memory for it"
    MOVED = "another sender begins it sooner"


@dataclass(frozen=True)
class Say(Action):
    """Say the message on the room's stream; dropped where that is over."""

    message: Message


# A receiver's


class WantGrant(Action):
    """Ask the engine for pages and a slot: Grant, Declined or Cancelled answers."""


@dataclass(frozen=True)
class Expect(Action):
    """Count windows that land in these ids."""

    destination: Destination


class Forget(Action):
    """Count no windows any more, and write none that travelled encoded."""


@dataclass(frozen=True)
class NoteWait(Action):
    """So many seconds of prefill are before the room. may_move: it may still go elsewhere."""

    seconds: float
    may_move: bool


class TellReady(HandOn):
    """The first token, for the engine."""


class TellHeld(Action):
    """The sender holds the wanted prefix, and its bytes follow. An engine need not act."""


class TellRefused(HandOn):
    """The sender refused the room, and nothing was granted."""


@dataclass(frozen=True)
class TellLost(Action):
    """The room is lost. What was granted is in quarantine until TellFenced."""

    reason: str
    loss: Loss


@dataclass(frozen=True)
class Verify(Action):
    """Compare what landed with `sent`. Verified answers."""

    sent: Sequence[WindowDigest]


class Prepare(HandOn):
    """Read the report of the final status. Prepared answers."""


class Commit(HandOn):
    """All has landed and matches: what was granted is the engine's own."""


class CallForDrain(Action):
    """Ask for the drain by a call of its own. DrainAnswered answers."""


class GiveUp(Action):
    """No drain was acknowledged for too long: end the connection, so that the lease runs out."""


@dataclass(frozen=True)
class Sever(Action):
    """Break all by which the writer's bytes may still come, and take in what has come. Severed
    answers."""

    reason: FenceReason


@dataclass(frozen=True)
class TellFenced(Action):
    """The writer can write no more: what was granted is free."""

    reason: FenceReason


class ServePull(HandOn):
    """Send what the sender pulls of this room."""


# A sender's


class Reserve(Action):
    """Give the engine the prompt, or what is fetched or pulled. Leased, Pinned or Refusal
    answers."""


@dataclass(frozen=True)
class Open(Action):
    """Let windows leave to these ids. Opened answers."""

    destination: Destination


class Start(HandOn):
    """The engine may compute, or plan what it holds; the payload is the grant's."""


class Plan(HandOn):
    """All windows of what is pinned may leave."""


class DrainNow(Action):
    """Post nothing more; Drained answers once what was posted has ended."""


class BeginPull(HandOn):
    """Pull what the receiver offered."""


# Of either side


@dataclass(frozen=True)
class EndPull(Action):
    """The room's pull is waited for no longer."""

    reason: str

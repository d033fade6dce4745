"""Messages of a transfer, as values: one side sends each, and the other side takes it as an event.

A `payload` is an engine's data: a machine passes it on unread. Nodes turn messages into protobuf
and back, and bound a peer's values before a machine sees them (engine/messages/transfer_proto.py).
Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.reports import ChunkDigest, Drain

Payload: TypeAlias = Any


@dataclass(frozen=True)
class Message:
    """Message of one side to the other."""


@dataclass(frozen=True)
class Carrying(Message):
    """Message made only of its payload."""

    payload: Payload = None


class Ask(Message):
    """Opens a room: by Reserve, Fetch or Pull, depending on its kind."""


@dataclass(frozen=True)
class Grant(Message):
    """The receiver's pages and slot. At the receiver it comes from its engine; it is then sent as a
    message."""

    generation: int
    destination: Destination
    payload: Payload = None


class Abort(Message):
    """The receiver asks for the end and the drain of the room."""


@dataclass(frozen=True)
class Queued(Message):
    """Place in the sender's queue. wait: seconds of prefill before the room, in its first message
    of this kind; else None."""

    position: int
    wait: float | None = None


class Accepted(Message):
    """The sender is about to start."""


class Refused(Carrying):
    """The sender rejects the room: nothing was granted, and nothing will be sent."""


@dataclass(frozen=True)
class Ready(Message):
    """The first token, in the payload. Layer chunks may still be in flight."""

    generation: int
    payload: Payload = None


@dataclass(frozen=True)
class Held(Message):
    """All layer chunks may leave at once, and no token comes."""

    generation: int


@dataclass(frozen=True)
class Done(Message):
    """The final status, after every chunk in `sent` was flushed."""

    generation: int
    sent: Sequence[ChunkDigest]
    payload: Payload = None


@dataclass(frozen=True)
class Ended(Message):
    """End without a result. reason: the sender's; None if the receiver wanted the end. generation:
    None if the message carries none."""

    drain: Drain
    reason: str | None = None
    generation: int | None = None


class PullAsked(Carrying):
    """In the room of a hand-over: the sender pulls the state offered by the receiver."""


class StopPull(Message):
    """The receiver of a pull asks for its end and its drain."""


class Unknown(Message):
    """A message of another version."""


@dataclass(frozen=True)
class Contradiction(Message):
    """Message impossible for a node of this version. reason: the contradiction found."""

    reason: str

"""Messages of a transfer as values: one side sends a message, and the other side takes it as an
event.

A `payload` is an engine's data: a state machine passes it on unread. Nodes turn messages into
protobuf and back, and bound a peer's values before a machine sees them
(engine/messages/transfer_proto.py). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.reports import ChunkDigest, Drain

Payload: TypeAlias = Any


@dataclass(frozen=True)
class Message:
    """Message of one side of a transfer to the other."""


@dataclass(frozen=True)
class Carrying(Message):
    """Message with an engine's payload and no other field."""

    payload: Payload = None


class Ask(Message):
    """Receiver's first message: Reserve, Fetch or Pull, by the transfer's kind."""


@dataclass(frozen=True)
class Grant(Message):
    """Receiver's destination for the bytes: its pages and slot. The receiver's engine supplies it,
    then it is sent to the sender."""

    generation: int
    destination: Destination
    payload: Payload = None


class Abort(Message):
    """Receiver's request to end the transfer and to report the drain of its posted writes."""


@dataclass(frozen=True)
class Queued(Message):
    """Position in the sender's queue. wait: seconds of prefill before this transfer's prompt; None:
    not given in this message."""

    position: int
    wait: float | None = None


class Accepted(Message):
    """Sender's notice of its start: it now waits for the destination."""


class Refused(Carrying):
    """Sender's rejection of the transfer: nothing was granted, and nothing will be sent."""


@dataclass(frozen=True)
class Ready(Message):
    """Sender's first token, in the payload. Layer chunks may still be in flight."""

    generation: int
    payload: Payload = None


@dataclass(frozen=True)
class Held(Message):
    """Sender's notice of a held prefix: all layer chunks may be sent now, and no token comes."""

    generation: int


@dataclass(frozen=True)
class Done(Message):
    """Sender's final status, after all chunks were flushed. sent: the chunks' digests."""

    generation: int
    sent: Sequence[ChunkDigest]
    payload: Payload = None


@dataclass(frozen=True)
class Ended(Message):
    """Sender's end of the transfer without a result. drain: how its posted writes ended. reason:
    the sender's; None if the receiver asked for the end. generation: None without one."""

    drain: Drain
    reason: str | None = None
    generation: int | None = None


class MediaWanted(Carrying):
    """Sender's request within a hand-over: it needs pictures of the prompt. The payload names them.
    Their bytes go by a call of their own."""


class PullAsked(Carrying):
    """Sender's request within a hand-over: it pulls the state offered by the receiver."""


class StopPull(Message):
    """Pull receiver's request to end the pull and to report the drain of its posted writes."""


class Unknown(Message):
    """Message of a kind unknown to this version."""


@dataclass(frozen=True)
class Contradiction(Message):
    """Message impossible for a peer of this version. reason: the contradiction found in it."""

    reason: str

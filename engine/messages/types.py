"""The base class of all messages, their plain value types, and functions to convert a message to
MessagePack and back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType, TypeAlias, dataclass_transform, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

from .media import Media

RequestId = NewType("RequestId", str)
TransferId = NewType("TransferId", int)
Tokens = NDArray[np.int32]
NodeName = tuple[int, int]
"""Name of a node of the cache's prefix tree, valid as long as the node exists."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Message:
    """A plain, immutable value. Each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class ErrorKind(Enum):
    """Reason for refusing a request, or for ending it without an answer. API servers map each
    reason to one gRPC status."""

    INVALID = "invalid"
    TOO_LONG = "too_long"
    DRAINING = "draining"
    QUEUE_TIMEOUT = "queue_timeout"
    OVERLOADED = "overloaded"
    NOT_HANDED_BACK = "not_handed_back"
    NO_TOWER = "no_tower"
    PICTURE_GONE = "picture_gone"
    INTERNAL = "internal"


class LossCause(Enum):
    """Causes for the loss of a hand-over. moved: the request was moved to a prefill node with an
    earlier start, before a destination was granted."""

    REFUSED = "refused"
    NO_NODE = "no_node"
    NO_ROOM = "no_room"
    STREAM = "stream"
    MISSING = "missing"
    DIGEST = "digest"
    PROTOCOL = "protocol"
    STALLED = "stalled"
    QUEUE_TIMEOUT = "queue_timeout"
    MOVED = "moved"


class RequestError(Message):
    """The error of a refused or failed request. retry_after: seconds until a retry is worthwhile;
    None: unknown."""

    kind: ErrorKind
    message: str
    retry_after: float | None = None


class OfTransfer(Message):
    """A message with a transfer id as its only field."""

    transfer_id: TransferId


class Targets(Message):
    """Time limits wanted for an answer.

    Each limit is in seconds, above 0 and finite; None: no limit, or the node's setting.
    first_token: seconds from arrival to the first token. per_token: mean seconds for each later
    token. answer: seconds from arrival to the last token.
    """

    first_token: float | None = None
    per_token: float | None = None
    answer: float | None = None

    def or_else(self, others: "Targets") -> "Targets":
        """Return these targets; take each unset one from `others`."""
        return Targets(
            others.first_token if self.first_token is None else self.first_token,
            others.per_token if self.per_token is None else self.per_token,
            others.answer if self.answer is None else self.answer,
        )


NO_TARGETS = Targets()


BodyReader: TypeAlias = Callable[[msgspec.Raw | bytes], Any]
PlainForm: TypeAlias = Callable[[Any], Any]
BuiltForm: TypeAlias = Callable[[Any, Any], Any]


def packer(plain: "PlainForm | None" = None) -> msgspec.msgpack.Encoder:
    """Return a MessagePack encoder for any message. plain: gives the plain form of types unknown to
    msgspec; None: plain_value, which keeps the length of media only.

    Code to move or store messages as bytes imports it by name; the messages themselves do not need
    it. encode() raises msgspec's errors for values without a plain form.
    """
    return msgspec.msgpack.Encoder(enc_hook=plain or plain_value)


def reader_of(kind: type, built: "BuiltForm | None" = None) -> BodyReader:
    """Return a MessagePack decoder of messages of one kind. It raises msgspec's errors for anything
    else. built: makes values of their plain form; None: built_value."""
    return msgspec.msgpack.Decoder(kind, dec_hook=built or built_value).decode


def plain_value(value: Any) -> Any:
    """Return a plain form of a type unknown to msgspec: an array, a number taken from an array, or
    the length of media."""
    if isinstance(value, Media):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is no plain value")


def built_value(kind: Any, value: Any) -> Any:
    """Return the value of a plain form. Raises NotImplementedError for other kinds."""
    if kind is Media:
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"media of length {value!r:.40}")
        return Media.absent(value)
    if (get_origin(kind) or kind) is not np.ndarray:
        raise NotImplementedError(f"{kind} is no plain value")
    dtype, shape, data = value
    # Copy it, because an array over the frame's bytes could not be written to.
    return np.frombuffer(data, dtype).reshape(shape).copy()

"""The base of all messages: their plain values, and one message to MessagePack and back.

Plain, immutable values and pure functions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NewType, TypeAlias, dataclass_transform, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", str)
RoomId = NewType("RoomId", int)
Tokens = NDArray[np.int32]
NodeName = tuple[int, int]
"""Of a node of the cache's tree, as long as it lives."""


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
    """Why a request was refused or ended without an answer; fronts map each to one gRPC status."""

    INVALID = "invalid"
    TOO_LONG = "too_long"
    DRAINING = "draining"
    QUEUE_TIMEOUT = "queue_timeout"
    OVERLOADED = "overloaded"
    NOT_HANDED_BACK = "not_handed_back"
    INTERNAL = "internal"


class LossCause(Enum):
    """Why a hand-over was lost. moved: to a node that would begin it sooner, before anything was
    granted."""

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
    """retry_after: seconds after which it may be asked again; None: nothing is known of that."""

    kind: ErrorKind
    message: str
    retry_after: float | None = None


class OfRoom(Message):
    """A message that names its room and nothing else."""

    room: RoomId


class Targets(Message):
    """What an answer is wanted within.

    Seconds, each above 0 and finite; None: nothing is asked, or what the node's settings say.
    first_token: from arrival to the first token. per_token: the mean over the later tokens. answer:
    from arrival to the last token.
    """

    first_token: float | None = None
    per_token: float | None = None
    answer: float | None = None

    def or_else(self, others: "Targets") -> "Targets":
        """The others' where it has none."""
        return Targets(
            others.first_token if self.first_token is None else self.first_token,
            others.per_token if self.per_token is None else self.per_token,
            others.answer if self.answer is None else self.answer,
        )


NO_TARGETS = Targets()


BodyReader: TypeAlias = Callable[[msgspec.Raw | bytes], Any]


def packer() -> msgspec.msgpack.Encoder:
    """One message to MessagePack and back. Pure.

    Not part of the messages themselves: whoever moves or keeps them as bytes imports it by name.

    Of any message. Its encode() raises msgspec's errors of what is no plain value.
    """
    return msgspec.msgpack.Encoder(enc_hook=_plain_value)


def reader_of(kind: type) -> BodyReader:
    """Of messages of that kind. It raises msgspec's errors of what is none."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_built_value).decode


def _plain_value(value: Any) -> Any:
    """What msgspec does not know: arrays, and numbers that came out of one."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is no plain value")


def _built_value(kind: Any, value: Any) -> Any:
    if (get_origin(kind) or kind) is not np.ndarray:
        raise NotImplementedError(f"{kind} is no plain value")
    dtype, shape, data = value
    # Copied: an array over the frame's bytes could not be written to.
    return np.frombuffer(data, dtype).reshape(shape).copy()

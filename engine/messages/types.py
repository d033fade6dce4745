"""The plain values that messages are made of."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, dataclass_transform

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

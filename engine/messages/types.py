"""The plain values that messages are made of."""

from dataclasses import dataclass
from enum import Enum
from typing import NewType

import numpy as np
from numpy.typing import NDArray

RequestId = NewType("RequestId", str)
RoomId = NewType("RoomId", int)
Tokens = NDArray[np.int32]
NodeName = tuple[int, int]
"""Of a node of the cache's tree, as long as it lives."""


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
    INTERNAL = "internal"


class LossCause(Enum):
    """Why a hand-over was lost."""

    REFUSED = "refused"
    NO_NODE = "no_node"
    NO_ROOM = "no_room"
    STREAM = "stream"
    MISSING = "missing"
    DIGEST = "digest"
    PROTOCOL = "protocol"
    STALLED = "stalled"
    QUEUE_TIMEOUT = "queue_timeout"


@dataclass(frozen=True)
class RequestError:
    kind: ErrorKind
    message: str


@dataclass(frozen=True)
class OfRoom:
    """A message that names its room and nothing else."""

    room: RoomId

"""What the two processes of a node send each other beside the engine's own messages.

Plain, immutable values. What the front's process sends is in FRONT_CONTROL, what the engine's
process sends in ENGINE_CONTROL.
"""

from typing import get_args

from tasuki.engine.messages import RequestId, RoomId
from tasuki.engine.messages.types import Message
from tasuki.transfer.control.link_status import HandoverStatus


class RequestTraced(Message):
    """Comes before the Submit of a request that is traced. header: its traceparent."""

    request_id: RequestId
    header: str


class FrontTurned(Message):
    """The front's event loop has come round to a FrontProbe."""


class RetireHandover(Message):
    """The node is about to drain: no other node learns of it any more, or asks it for more;
    answered by HandoverRetired."""


class EndHandover(Message):
    """End the rooms in flight, links and the hand-over's server; answered by HandoverOver."""


class EndEngine(Message):
    """End the engine and its process."""


class EngineStands(Message):
    """The engine is ready. max_request_tokens: of prompt and answer together. max_batch: requests
    in one forward. trials: address of the trial server of its grammars (model/grammar/trials).
    handover_address: HOST:PORT of its server for decode nodes; None without one."""

    max_request_tokens: int
    max_batch: int
    trials: str
    handover_address: str | None = None


class StartFailed(Message):
    """The engine's process ends before it stands. reason: what the daemon's user reads."""

    reason: str


class EngineLost(Message):
    """The engine's loop, or the hand-over's, has died."""

    reason: str


class EngineEnds(Message):
    """The last words of the engine's process, which ends at once. reason: why, in words."""

    reason: str


class RoomBegun(Message):
    """A prompt that another node handed to this one. traceparent: of that node's request."""

    room: RoomId
    request: str
    traceparent: str


class HandoverShown(Message):
    """Comes before each StatsReply."""

    status: HandoverStatus


class HandoverRetired(Message):
    """Of RetireHandover."""


class HandoverOver(Message):
    """Of EndHandover."""


class TokensMade(Message):
    """So many tokens went to front workers."""

    count: int


class WorkerGone(Message):
    """The link to that front worker has ended. left: its requests that the engine still had, which
    are aborted; behind the ends of the others."""

    number: int
    left: tuple[RequestId, ...]


class FrontProbe(Message):
    """Answered by FrontTurned on the front's event loop."""


FrontControl = RequestTraced | FrontTurned | RetireHandover | EndHandover | EndEngine
EngineControl = (
    EngineStands
    | StartFailed
    | EngineLost
    | EngineEnds
    | RoomBegun
    | HandoverShown
    | HandoverRetired
    | HandoverOver
    | TokensMade
    | WorkerGone
    | FrontProbe
)
FRONT_CONTROL = get_args(FrontControl)
ENGINE_CONTROL = get_args(EngineControl)

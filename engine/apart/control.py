"""Messages between the two processes of a node, beside the engine's own messages.

Plain, immutable values. FRONT_CONTROL lists the API server's messages, ENGINE_CONTROL the engine
process's.
"""

from typing import get_args

from tasuki.engine.messages import RequestId, TransferId
from tasuki.engine.messages.types import Message
from tasuki.transfer.control.link_status import HandoverStatus


class RequestTraced(Message):
    """A traced request. Comes before its Submit. header: its traceparent."""

    request_id: RequestId
    header: str


class FrontTurned(Message):
    """An answer to FrontProbe from the API server's event loop."""


class RetireHandover(Message):
    """The start of a drain: other nodes must neither discover this node nor send it more requests.
    Answered by HandoverRetired."""


class EndHandover(Message):
    """A request to end the transfers in flight, links and the hand-over's server. Answered by
    HandoverOver."""


class EndEngine(Message):
    """A request to end the engine and its process."""


class EngineStands(Message):
    """The engine is ready. max_request_tokens: limit for prompt and answer together. max_batch:
    requests in one forward. trials: address of the trial server of its grammars
    (model/grammar/trials). handover_address: HOST:PORT of its server for decode nodes; None without
    one."""

    max_request_tokens: int
    max_batch: int
    trials: str
    handover_address: str | None = None


class StartFailed(Message):
    """The engine's process ends before it is ready. reason: text for the daemon's user."""

    reason: str


class EngineLost(Message):
    """The engine's loop, or the hand-over's, has died."""

    reason: str


class EngineEnds(Message):
    """The last message of the engine's process before it ends. reason: in words."""

    reason: str


class TransferBegun(Message):
    """A prompt handed to this node by another one. traceparent: from the other node's request."""

    transfer_id: TransferId
    request: str
    traceparent: str


class HandoverShown(Message):
    """The status of the hand-over. Comes before each StatsReply."""

    status: HandoverStatus


class HandoverRetired(Message):
    """The answer to RetireHandover."""


class HandoverOver(Message):
    """The answer to EndHandover."""


class TokensMade(Message):
    """The number of tokens sent to API server workers."""

    count: int


class WorkerGone(Message):
    """The end of the link to an API server worker. left: its requests still in the engine, now
    aborted. The message comes after the ends of its other requests."""

    number: int
    left: tuple[RequestId, ...]


class FrontProbe(Message):
    """A probe of the API server's event loop, answered by FrontTurned."""


FrontControl = RequestTraced | FrontTurned | RetireHandover | EndHandover | EndEngine
EngineControl = (
    EngineStands
    | StartFailed
    | EngineLost
    | EngineEnds
    | TransferBegun
    | HandoverShown
    | HandoverRetired
    | HandoverOver
    | TokensMade
    | WorkerGone
    | FrontProbe
)
FRONT_CONTROL = get_args(FrontControl)
ENGINE_CONTROL = get_args(EngineControl)

"""Messages between the two processes of a node (API server and engine), in addition to the engine's
own messages."""

from typing import get_args

from tasuki.engine.messages import RequestId, TransferId
from tasuki.engine.messages.types import Message
from tasuki.transfer.control.link_status import HandoverStatus


class RequestTraced(Message):
    """The trace context of a request, sent before its Submit. header: the request's traceparent."""

    request_id: RequestId
    header: str


class FrontTurned(Message):
    """The answer to FrontProbe from the API server's event loop: the loop still runs."""


class RetireHandover(Message):
    """Begin the node's drain: other nodes must neither discover this node nor send it more
    requests. Answered by HandoverRetired."""


class EndHandover(Message):
    """End the transfers in flight, the connections to other nodes, and the server for hand-overs.
    Answered by HandoverOver."""


class EndEngine(Message):
    """End the engine and its process."""


class EngineStands(Message):
    """The engine is ready. max_request_tokens: most tokens of prompt and answer together.
    max_batch: most requests in one forward. trials: address of the server trying grammars in a
    separate process (model/grammar/trials). handover_address: HOST:PORT of the engine's server for
    decode nodes; None without one. sees_pictures: prompts may have pictures."""

    max_request_tokens: int
    max_batch: int
    trials: str
    handover_address: str | None = None
    sees_pictures: bool = False


class StartFailed(Message):
    """The engine's process ends before the engine is ready. reason: text for the daemon's user."""

    reason: str


class EngineLost(Message):
    """The engine's loop, or the hand-over's event loop, has ended with an error. reason: text for
    the log."""

    reason: str


class EngineEnds(Message):
    """The last message of the engine's process before it ends. reason: text for the log."""

    reason: str


class TransferBegun(Message):
    """Another node has begun to hand a prompt to this node. transfer_id: the transfer. request: id
    of the other node's request. traceparent: its trace context."""

    transfer_id: TransferId
    request: str
    traceparent: str


class HandoverShown(Message):
    """The status of the node's hand-overs. Sent before each StatsReply."""

    status: HandoverStatus


class HandoverRetired(Message):
    """The answer to RetireHandover: other nodes send no more requests."""


class HandoverOver(Message):
    """The answer to EndHandover: all transfers and the server for hand-overs have ended."""


class TokensMade(Message):
    """The number of tokens sent directly to API server workers, for the API server's counters."""

    count: int


class WorkerGone(Message):
    """The end of the link to an API server worker. number: the worker's number. left: its requests
    still in the engine, now aborted. The message comes after the ends of its other requests."""

    number: int
    left: tuple[RequestId, ...]


class FrontProbe(Message):
    """A probe of the API server's event loop: if it still runs, it answers FrontTurned."""


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

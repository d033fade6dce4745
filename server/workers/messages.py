"""Messages between a front worker and the node's registry.

Plain, immutable values. An Ask has a number of its worker's own, higher than those before it, and
is answered by one Reply of that number; a Note is not answered. A worker's messages are taken in
order. Reserve, Enter and BeginTurn begin something; Release, End or Leave, and EndTurn end it. The
message that ends it may come before the grant: then what was granted is given back at once
(server/workers/registry.py).

refused() and error_of(): Typed errors across a process: as the plain fields of `Refused`, and back.
Pure.
"""

from collections.abc import Iterator
from typing import get_args

from tasuki.engine.messages import RequestError, RequestId, Submit
from tasuki.engine.messages.types import Message
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.errors import InvalidField, RateLimited, RequestRejected, ServerError
from tasuki.server.responses.stored_responses import StoredResponse
from tasuki.server.sessions import Appended, LogEnd, SessionInput, Tail, TurnPrompt


class Admit(Message):
    """As Answering.admit."""

    call: int
    caller: Caller


class Reserve(Message):
    """As Answering.admitted, until Release."""

    call: int
    caller: Caller
    given: RequestId


class Enter(Message):
    """Let a call's requests in, as EngineClient.generate_all, until the End of every answer, or
    Leave. chat_tokens: the worker's counts so far, by their source."""

    call: int
    submits: tuple[Submit, ...]
    context: RequestContext
    chat_tokens: dict[str, int]


class End(Message):
    """One of Enter's answers has ended and was read: answered once the registry has seen the end
    too, and all that this worker sent before is done, so that the client may see it. answer: its
    place among them. tokens: to count against the caller's limits, beside those of Took."""

    call: int
    entered: int
    answer: int
    tokens: int


class ReadLogEnd(Message):
    """As Sessions.end."""

    call: int
    caller: Caller
    session_id: str


class AppendToLog(Message):
    """As Sessions.append."""

    call: int
    caller: Caller
    session_id: str
    after: Tail
    added: SessionInput


class BeginTurn(Message):
    """As Sessions.turn, until EndTurn."""

    call: int
    caller: Caller
    tenant: str | None
    session_id: str


class EndTurn(Message):
    """The end of a BeginTurn, also of one that was refused or is not granted yet. answer: to keep;
    None: the turn is taken back."""

    call: int
    begun: int
    answer: tuple[int, ...] | None


class FindResponse(Message):
    """As ResponseStore.get."""

    call: int
    context: RequestContext
    response_id: str


Ask = Admit | Reserve | Enter | End | ReadLogEnd | AppendToLog | BeginTurn | EndTurn | FindResponse


class Release(Message):
    """The end of a Reserve, also of one that was refused or is not granted yet."""

    reserved: int


class Took(Message):
    """So many more tokens of the answers were taken by their reader."""

    entered: int
    tokens: int


class Leave(Message):
    """Nobody reads the answers any more, before all have ended. submitted: whether the engine was
    sent the requests. tokens: as in End."""

    entered: int
    tokens: int
    submitted: bool


class KeepResponse(Message):
    """As ResponseStore.put."""

    context: RequestContext
    response: StoredResponse


class WorkerStands(Message):
    """Its servers take calls."""


class WorkerFailed(Message):
    """It ends before it stands. reason: what the daemon's user reads."""

    reason: str


class CallsOver(Message):
    """Of AwaitCalls."""


class Awake(Message):
    """Of every Look. failures: the worker's calls that failed so far, by kind."""

    failures: dict[str, int]


Note = Release | Took | Leave | KeepResponse | WorkerStands | WorkerFailed | CallsOver | Awake
FromWorker = Ask | Note


class Done(Message):
    call: int


class Reserved(Message):
    call: int
    request_id: RequestId


class Entered(Message):
    """names: the engine's, of every answer of each request in order. headers: their traceparents;
    empty where they are not traced."""

    call: int
    names: tuple[RequestId, ...]
    headers: tuple[str, ...]


class LogEndRead(Message):
    call: int
    end: LogEnd


class AppendedToLog(Message):
    call: int
    appended: Appended


class TurnBegun(Message):
    call: int
    prompt: TurnPrompt


class ResponseFound(Message):
    call: int
    response: StoredResponse | None


class Refused(Message):
    """error: the name of a ServerError's class; retry_after: of a RateLimited, seconds; field: of
    an InvalidField; rejected: of a RequestRejected."""

    call: int
    error: str
    message: str
    retry_after: float | None = None
    field: str | None = None
    rejected: RequestError | None = None


Reply = Done | Reserved | Entered | LogEndRead | AppendedToLog | TurnBegun | ResponseFound | Refused


class AbortAsked(Message):
    """Somebody has asked for the end of a request of this worker's, which posts it behind the
    request."""

    name: RequestId


class LeaveRotation(Message):
    """Report that this node is not ready; calls are taken as before."""


class ComeBack(Message):
    """Report that this node is ready again."""


class RefuseTraffic(Message):
    """Report that this node drains; calls are still answered."""


class AwaitCalls(Message):
    """Answered by CallsOver when no call is in progress."""


class Look(Message):
    """Answered by Awake at once, by whatever loop the calls run on."""


class EndWorker(Message):
    """End the servers, then the process."""


class EngineDied(Message):
    reason: str


ToWorker = (
    Reply
    | AbortAsked
    | LeaveRotation
    | ComeBack
    | RefuseTraffic
    | AwaitCalls
    | Look
    | EndWorker
    | EngineDied
)
KINDS: tuple[type, ...] = get_args(FromWorker) + get_args(ToWorker)


def refused(call: int, error: ServerError) -> Refused:
    return Refused(
        call,
        type(error).__name__,
        str(error),
        retry_after=error.retry_after if isinstance(error, RateLimited) else None,
        field=error.field if isinstance(error, InvalidField) else None,
        rejected=error.error if isinstance(error, RequestRejected) else None,
    )


def error_of(refusal: Refused) -> ServerError:
    """The same error: its class, message and fields."""
    if refusal.rejected is not None:
        return RequestRejected(refusal.rejected)
    if refusal.retry_after is not None:
        return RateLimited(refusal.message, refusal.retry_after)
    if refusal.field is not None:
        return InvalidField(refusal.field, refusal.message.removeprefix(f"{refusal.field} "))
    return _CLASSES[refusal.error](refusal.message)


def _all(kind: type[ServerError]) -> Iterator[type[ServerError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _all(narrower)


_CLASSES = {kind.__name__: kind for kind in _all(ServerError)}

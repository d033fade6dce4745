"""Messages between a front worker and the node's registry.

Plain, immutable values. An Ask has a number chosen by its worker, higher than all its earlier ones.
One Reply with its number answers it; a Note is not answered. A worker's messages are handled in
order. Reserve, Enter and BeginTurn begin something; Release, End or Leave, and EndTurn end it. The
ending message may come before the grant: the granted thing is then given back at once
(server/workers/registry.py).

refused() and error_of() carry typed errors between processes, as the plain fields of `Refused`.
Pure.
"""

from collections.abc import Iterator
from typing import get_args

from tasuki.engine.messages import PictureCounts, RequestError, RequestId, Submit
from tasuki.engine.messages.types import Message
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.errors import InvalidField, RateLimited, RequestRejected, ServerError
from tasuki.server.responses.stored_responses import StoredResponse
from tasuki.server.sessions import Appended, LogEnd, SessionInput, Tail, TurnPrompt


class Admit(Message):
    """A worker's request for the call Answering.admit in the registry."""

    call: int
    caller: Caller


class Reserve(Message):
    """A worker's request for the call Answering.admitted (a reserved request id), held until
    Release."""

    call: int
    caller: Caller
    given: RequestId


class Enter(Message):
    """A worker's request to admit the requests of one call, as EngineClient.generate_all does. They
    stay admitted until the End of every answer, or Leave. chat_tokens: the worker's rendered tokens
    so far, by their source."""

    call: int
    submits: tuple[Submit, ...]
    context: RequestContext
    chat_tokens: dict[str, int]


class End(Message):
    """The end of one answer of an Enter, read to its end by the client. The reply comes once the
    registry has seen the engine's end too, and has handled all earlier messages of this worker.
    Then the client may see the end. answer: the answer's index in the call. tokens: number of
    tokens to count against the caller's limits, in addition to those of Took."""

    call: int
    entered: int
    answer: int
    tokens: int


class ReadLogEnd(Message):
    """A worker's request for the call Sessions.end in the registry."""

    call: int
    caller: Caller
    session_id: str


class AppendToLog(Message):
    """A worker's request for the call Sessions.append in the registry."""

    call: int
    caller: Caller
    session_id: str
    after: Tail
    added: SessionInput


class BeginTurn(Message):
    """A worker's request for the call Sessions.turn, held until EndTurn."""

    call: int
    caller: Caller
    tenant: str | None
    session_id: str


class EndTurn(Message):
    """The end of a BeginTurn, even of a refused one or one not granted yet. answer: the token ids
    of the answer to keep; None: the turn is removed."""

    call: int
    begun: int
    answer: tuple[int, ...] | None


class FindResponse(Message):
    """A worker's request for the call ResponseStore.get in the registry."""

    call: int
    context: RequestContext
    response_id: str


Ask = Admit | Reserve | Enter | End | ReadLogEnd | AppendToLog | BeginTurn | EndTurn | FindResponse


class Release(Message):
    """The end of a Reserve, even of a refused one or one not granted yet."""

    reserved: int


class Took(Message):
    """The number of further tokens taken by the reader of a call's answers."""

    entered: int
    tokens: int


class Leave(Message):
    """The end of an Enter before all its answers have ended: no client reads them any more.
    submitted: the requests were sent to the engine. tokens: number of tokens to count against the
    caller's limits."""

    entered: int
    tokens: int
    submitted: bool


class KeepResponse(Message):
    """A worker's request for the call ResponseStore.put in the registry."""

    context: RequestContext
    response: StoredResponse


class WorkerStands(Message):
    """A worker's message: its servers take calls."""


class WorkerFailed(Message):
    """A worker's message: it ends before its servers take calls. reason: text shown to the daemon's
    user."""

    reason: str


class CallsOver(Message):
    """A worker's answer to AwaitCalls: no call is in progress."""


class Awake(Message):
    """A worker's answer to each Look. failures: number of the worker's failed calls so far, by
    kind. pictures: its counts of pictures so far."""

    failures: dict[str, int]
    pictures: PictureCounts = PictureCounts()


Note = Release | Took | Leave | KeepResponse | WorkerStands | WorkerFailed | CallsOver | Awake
FromWorker = Ask | Note


class Done(Message):
    call: int


class Reserved(Message):
    call: int
    request_id: RequestId


class Entered(Message):
    """The registry's answer to Enter. names: the engine's ids of every answer of each request, in
    order. headers: their traceparents; empty if they are not traced."""

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
    """The registry's refusal of an ask. error: name of a ServerError's class. retry_after: seconds,
    for a RateLimited. field: field's name, for an InvalidField. rejected: the engine's error, for a
    RequestRejected."""

    call: int
    error: str
    message: str
    retry_after: float | None = None
    field: str | None = None
    rejected: RequestError | None = None


Reply = Done | Reserved | Entered | LogEndRead | AppendedToLog | TurnBegun | ResponseFound | Refused


class AbortAsked(Message):
    """The registry's message: a caller has asked to abort a request of this worker. The worker
    sends the abort to the engine after the request."""

    name: RequestId


class LeaveRotation(Message):
    """The registry's order to report this node as not ready. Calls are taken as before."""


class ComeBack(Message):
    """The registry's order to report this node as ready again."""


class RefuseTraffic(Message):
    """The registry's order to report this node as draining. Calls are still answered."""


class AwaitCalls(Message):
    """The registry's request for an answer (CallsOver) when no call is in progress."""


class Look(Message):
    """The registry's check of a worker. The worker answers with Awake at once, on the event loop of
    the calls."""


class EndWorker(Message):
    """The registry's order to end the worker's servers, then its process."""


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
    """Return the original error of a refusal: its class, message and fields."""
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

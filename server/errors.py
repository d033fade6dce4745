"""The errors with which a server refuses or ends a call, and the gRPC status of each.

server/error_reference.py writes the table of docs/errors.md from the classes below: a class's
docstring is the cause, `retry` what the caller may do. Over gRPC the trailing metadata
`tasuki-error-kind` and `tasuki-retry` carry both for programs; RateLimited adds gRPC's own
`grpc-retry-pushback-ms`, the milliseconds to wait. server/http/errors.py has the status of each
over HTTP.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import grpc
from tasuki.engine.messages import ErrorKind, RequestError

CallContext = grpc.aio.ServicerContext[Any, Any]

ERROR_KIND_KEY = "tasuki-error-kind"
RETRY_AFTER_KEY = "grpc-retry-pushback-ms"
RETRY_KEY = "tasuki-retry"


class Retry(Enum):
    """What a caller may do about an error."""

    NEVER = "never"  # the same call would be refused again: mend it first
    LATER = "later"  # here, a moment later
    ELSEWHERE = "elsewhere"  # at another node, or here once this one is back
    REOPEN = "reopen"  # open the session again and replay the conversation


STATUS_OF = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.QUEUE_TIMEOUT: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}


RETRY_OF = {
    ErrorKind.INVALID: Retry.NEVER,
    ErrorKind.TOO_LONG: Retry.NEVER,
    ErrorKind.DRAINING: Retry.ELSEWHERE,
    ErrorKind.QUEUE_TIMEOUT: Retry.LATER,
    ErrorKind.INTERNAL: Retry.NEVER,
}


class FrontError(Exception):
    """Ends one call. The message names the field and the mend."""

    status = grpc.StatusCode.INTERNAL
    kind = "internal"
    retry = Retry.NEVER


class InvalidApiKey(FrontError):
    """The API key is missing or wrong."""

    status = grpc.StatusCode.UNAUTHENTICATED
    kind = "invalid_api_key"


class PermissionDenied(FrontError):
    """The API key lacks the scope that the call needs."""

    status = grpc.StatusCode.PERMISSION_DENIED
    kind = "permission_denied"


class InvalidRequest(FrontError):
    """A field is missing, malformed or beyond its bounds."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    kind = "invalid"


class InvalidField(InvalidRequest):
    """One named field of the request is to blame."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field


class PromptTooLong(InvalidRequest):
    """The model's context, or this node's memory, cannot hold the prompt and its answer."""

    kind = "too_long"


class RequestRejected(FrontError):
    """The engine refused the request or could not finish it."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = STATUS_OF[error.kind]
        self.kind = error.kind.value
        self.retry = RETRY_OF[error.kind]


class UnknownSession(FrontError):
    """The session was closed, gave way to others, or was on a node that restarted."""

    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_session"
    retry = Retry.REOPEN


class UnknownRequest(FrontError):
    """The node does not remember how a request of that id ended."""

    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_request"


class UnknownNode(FrontError):
    """The tree no longer holds the node or prefix of the question."""

    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_node"


class SessionBusy(FrontError):
    """A turn of the session runs: wait for its end."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    kind = "session_busy"


class RoleFixed(FrontError):
    """The node cannot take another role, or not now."""

    status = grpc.StatusCode.FAILED_PRECONDITION
    kind = "role_fixed"


class NotServedHere(FrontError):
    """The node does not serve that: a prefill node answers no clients, decode nodes do."""

    status = grpc.StatusCode.UNIMPLEMENTED
    kind = "not_served_here"
    retry = Retry.ELSEWHERE


class SessionLimit(FrontError):
    """As many sessions are open as the node allows, or as it allows to one API key, and none is
    idle."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "session_limit"
    retry = Retry.LATER


class RequestLimit(FrontError):
    """The caller has as many requests in flight as one API key may have."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "request_limit"
    retry = Retry.LATER


class WatcherLimit(FrontError):
    """As many watch the node as it allows, or as it allows to one API key."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "watcher_limit"
    retry = Retry.LATER


class DuplicateRequest(FrontError):
    """A request of that id is in flight."""

    status = grpc.StatusCode.ALREADY_EXISTS
    kind = "duplicate_request"


class LoopBehind(FrontError):
    """The node is so far behind with other callers' work that it did not take the call up."""

    status = grpc.StatusCode.UNAVAILABLE
    kind = "behind"
    retry = Retry.ELSEWHERE


class SlowReader(FrontError):
    """The client does not read its answer as fast as it is made."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "slow_reader"


class RateLimited(FrontError):
    """The caller has used what it may ask for in a minute."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "rate_limited"
    retry = Retry.LATER

    def __init__(self, message: str, retry_after: float) -> None:
        """retry_after: seconds."""
        super().__init__(message)
        self.retry_after = retry_after


class Busy(FrontError):
    """As many prompts wait to be read as the node allows."""

    status = grpc.StatusCode.UNAVAILABLE
    kind = "busy"
    retry = Retry.LATER


class RequestAborted(FrontError):
    """Somebody else ended the request, and the API has no finish reason for it."""

    status = grpc.StatusCode.ABORTED
    kind = "aborted"


def _trailer(error: FrontError) -> tuple[tuple[str, str], ...]:
    hints = ((ERROR_KIND_KEY, error.kind), (RETRY_KEY, error.retry.value))
    if not isinstance(error, RateLimited):
        return hints
    return (*hints, (RETRY_AFTER_KEY, str(math.ceil(1000 * error.retry_after))))


@asynccontextmanager
async def refusals(context: CallContext) -> AsyncIterator[None]:
    """Ends the call with the error's status where the body raises a FrontError."""
    try:
        yield
    except FrontError as error:
        await context.abort(error.status, str(error), _trailer(error))

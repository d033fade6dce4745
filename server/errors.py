"""The errors of a server's calls, and the gRPC status of each.

scripts/docs/error_table.py writes the table of docs/errors.md from the classes below: a class's
docstring is the cause, `retry` the caller's options. Over gRPC the trailing metadata
`tasuki-error-kind` and `tasuki-retry` carry both for programs. If the time to wait is known, gRPC's
own `grpc-retry-pushback-ms` has it in milliseconds. server/http/errors.py has the status of each
over HTTP.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import grpc
from grpc import StatusCode

from tasuki.engine.messages import ErrorKind, RequestError

CallContext = grpc.aio.ServicerContext[Any, Any]

ERROR_KIND_KEY = "tasuki-error-kind"
RETRY_AFTER_KEY = "grpc-retry-pushback-ms"
RETRY_KEY = "tasuki-retry"
_LONGEST = 1000
"""Largest length of an error message in characters. A status shares 16 KiB of metadata, and an odd
character takes up to twelve bytes."""


class Retry(Enum):
    """The caller's options after an error."""

    NEVER = "never"  # the same call would be rejected again: fix it first
    LATER = "later"  # at this node, a moment later
    ELSEWHERE = "elsewhere"  # at another node, or at this one once it is back
    REOPEN = "reopen"  # open the session again and replay the conversation


REJECTED = {
    ErrorKind.INVALID: (StatusCode.INVALID_ARGUMENT, Retry.NEVER),
    ErrorKind.TOO_LONG: (StatusCode.INVALID_ARGUMENT, Retry.NEVER),
    ErrorKind.DRAINING: (StatusCode.UNAVAILABLE, Retry.ELSEWHERE),
    ErrorKind.QUEUE_TIMEOUT: (StatusCode.UNAVAILABLE, Retry.LATER),
    ErrorKind.OVERLOADED: (StatusCode.RESOURCE_EXHAUSTED, Retry.LATER),
    ErrorKind.NOT_HANDED_BACK: (StatusCode.UNAVAILABLE, Retry.ELSEWHERE),
    ErrorKind.PICTURE_GONE: (StatusCode.NOT_FOUND, Retry.REOPEN),
    ErrorKind.INTERNAL: (StatusCode.INTERNAL, Retry.NEVER),
}


class ServerError(Exception):
    """Base of errors that end one call. The message names the field and the fix. A subclass sets
    its status, kind and retry; otherwise the base's values hold."""

    status = StatusCode.INTERNAL
    kind = "internal"
    retry = Retry.NEVER
    retry_after: float | None = None
    """Number of seconds before a retry, if known."""

    def __init_subclass__(
        cls,
        status: StatusCode | None = None,
        kind: str | None = None,
        retry: Retry | None = None,
    ) -> None:
        for name, value in (("status", status), ("kind", kind), ("retry", retry)):
            if value is not None:
                setattr(cls, name, value)


class InvalidApiKey(ServerError, status=StatusCode.UNAUTHENTICATED, kind="invalid_api_key"):
    """The API key is missing or wrong."""


class PermissionDenied(ServerError, status=StatusCode.PERMISSION_DENIED, kind="permission_denied"):
    """The API key lacks the scope of the call."""


class InvalidRequest(ServerError, status=StatusCode.INVALID_ARGUMENT, kind="invalid"):
    """A field is missing, malformed or beyond its bounds."""


class InvalidField(InvalidRequest):
    """One named field of the request is the cause."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field


class PictureMissing(InvalidField, kind="picture_missing"):
    """A token id of the prompt is a picture's placeholder, and no picture is there."""


class PictureUnseen(InvalidField, kind="picture_unseen"):
    """A request has a picture, and the model has no vision tower, or this node does not use it."""


class PictureTooLarge(InvalidField, kind="picture_too_large"):
    """A picture, or all pictures of the request together, are beyond the node's bounds."""


class PictureNotFetched(InvalidField, kind="picture_not_fetched"):
    """A picture is given by an address, and the node fetches none."""


class PromptTooLong(InvalidRequest, kind="too_long"):
    """The model's context, or this node's memory, cannot hold the prompt and its answer."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """Set the error. field: name of the request's oversized field; None: no single field."""
        super().__init__(message)
        self.field = field


class RequestRejected(ServerError):
    """The engine rejected the request or could not finish it."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error
        self.status, self.retry = REJECTED[error.kind]
        self.kind = error.kind.value
        self.retry_after = error.retry_after


class UnknownSession(
    ServerError, status=StatusCode.NOT_FOUND, kind="unknown_session", retry=Retry.REOPEN
):
    """The session was closed, was removed for others, or was on a restarted node."""


class UnknownRequest(ServerError, status=StatusCode.NOT_FOUND, kind="unknown_request"):
    """The node does not remember the end of a request with that id."""


class UnknownNode(ServerError, status=StatusCode.NOT_FOUND, kind="unknown_node"):
    """The tree no longer holds the node or prefix of the question."""


class SessionBusy(ServerError, status=StatusCode.FAILED_PRECONDITION, kind="session_busy"):
    """A turn of the session runs: wait for its end."""


class RoleFixed(ServerError, status=StatusCode.FAILED_PRECONDITION, kind="role_fixed"):
    """The node cannot take another role, or not now."""


class NotServedHere(
    ServerError, status=StatusCode.UNIMPLEMENTED, kind="not_served_here", retry=Retry.ELSEWHERE
):
    """The node does not serve that call: clients ask decode nodes, not prefill nodes."""


class SessionLimit(
    ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="session_limit", retry=Retry.LATER
):
    """The node, or the API key, has its most sessions open, and none is idle."""


class RequestLimit(
    ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="request_limit", retry=Retry.LATER
):
    """The caller has as many requests in flight as one API key may have."""


class WatcherLimit(
    ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="watcher_limit", retry=Retry.LATER
):
    """The node, or the API key, has its most watchers."""


class SocketLimit(
    ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="socket_limit", retry=Retry.LATER
):
    """The node, or the API key, has its most WebSockets open."""


class DuplicateRequest(ServerError, status=StatusCode.ALREADY_EXISTS, kind="duplicate_request"):
    """A request with that id is in flight."""


class LoopBehind(ServerError, status=StatusCode.UNAVAILABLE, kind="behind", retry=Retry.ELSEWHERE):
    """The node was too busy with other callers' work to take the call up."""


class SlowReader(ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="slow_reader"):
    """The client does not read its answer as fast as it is made."""


class RateLimited(
    ServerError, status=StatusCode.RESOURCE_EXHAUSTED, kind="rate_limited", retry=Retry.LATER
):
    """The caller has used its requests or tokens of this minute."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Set the error. retry_after: seconds until the caller may retry."""
        super().__init__(message)
        self.retry_after = retry_after


class Busy(ServerError, status=StatusCode.UNAVAILABLE, kind="busy", retry=Retry.LATER):
    """The node has its most unread prompts, or its requests hold the most memory allowed."""


class RequestAborted(ServerError, status=StatusCode.ABORTED, kind="aborted"):
    """Somebody else ended the request, and the API has no finish reason for it."""


def error_classes(base: type[ServerError] = ServerError) -> Iterator[type[ServerError]]:
    """Yield the imported error classes below `base`."""
    for kind_of in base.__subclasses__():
        yield kind_of
        yield from error_classes(kind_of)


def error_kinds() -> set[str]:
    """Return the kinds (names for programs) of all errors of calls."""
    return {ServerError.kind, *(one.kind for one in error_classes()), *(k.value for k in ErrorKind)}


def _details(error: ServerError) -> str:
    """Return the error's message, cut to the size limit of a gRPC status. It may contain a client's
    text."""
    message = str(error)
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."


def _trailer(error: ServerError) -> tuple[tuple[str, str], ...]:
    hints = ((ERROR_KIND_KEY, error.kind), (RETRY_KEY, error.retry.value))
    if error.retry_after is None:
        return hints
    return (*hints, (RETRY_AFTER_KEY, str(math.ceil(1000 * error.retry_after))))


Failed = Callable[[str], None]
"""A function to count a failed call by the kind of its error."""


@asynccontextmanager
async def refusals(context: CallContext, failed: Failed = lambda kind: None) -> AsyncIterator[None]:
    """A context manager for the body of a gRPC call. If the body raises a ServerError, the call
    ends with the error's status. failed: counts the call by the error's kind, or as `internal` for
    any other exception. A call ended by its own abort() is not counted."""
    try:
        yield
    except ServerError as error:
        failed(error.kind)
        await context.abort(error.status, _details(error), _trailer(error))
    except grpc.aio.AbortError:
        raise
    except Exception:
        failed(ServerError.kind)
        raise

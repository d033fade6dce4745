"""Why a front refuses or ends a call, and the gRPC status each reason has.

| error | status | trailing `tasuki-error-kind` |
| --- | --- | --- |
| InvalidRequest, InvalidField | INVALID_ARGUMENT | invalid |
| PromptTooLong | INVALID_ARGUMENT | too_long |
| RequestRejected(INVALID) | INVALID_ARGUMENT | invalid |
| RequestRejected(TOO_LONG) | INVALID_ARGUMENT | too_long |
| RequestRejected(DRAINING) | UNAVAILABLE | draining |
| RequestRejected(INTERNAL) | INTERNAL | internal |
| UnknownSession | NOT_FOUND | unknown_session |
| UnknownRequest | NOT_FOUND | unknown_request |
| UnknownNode | NOT_FOUND | unknown_node |
| SessionBusy | FAILED_PRECONDITION | session_busy |
| SessionLimit | RESOURCE_EXHAUSTED | session_limit |
| DuplicateRequest | ALREADY_EXISTS | duplicate_request |
| SlowReader | RESOURCE_EXHAUSTED | slow_reader |
| RateLimited | RESOURCE_EXHAUSTED | rate_limited |
| RequestAborted (HTTP only: gRPC's Finished says so) | ABORTED | aborted |

RateLimited tells after how many milliseconds to ask again, as gRPC has it: in the trailing
`grpc-retry-pushback-ms`. The HTTP status of each gRPC status stands in http_errors.py.
"""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from ..engine.messages import ErrorKind, RequestError

CallContext = grpc.aio.ServicerContext[Any, Any]

ERROR_KIND_KEY = "tasuki-error-kind"
RETRY_AFTER_KEY = "grpc-retry-pushback-ms"

_STATUS = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.TOO_LONG: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.DRAINING: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.INTERNAL: grpc.StatusCode.INTERNAL,
}


class FrontError(Exception):
    """Ends one call. The message names the field and the mend."""

    status = grpc.StatusCode.INTERNAL
    kind = "internal"


class InvalidRequest(FrontError):
    status = grpc.StatusCode.INVALID_ARGUMENT
    kind = "invalid"


class InvalidField(InvalidRequest):
    """One named field of the request is to blame."""

    def __init__(self, field: str, complaint: str) -> None:
        super().__init__(f"{field} {complaint}")
        self.field = field


class PromptTooLong(InvalidRequest):
    kind = "too_long"


class RequestRejected(FrontError):
    """The engine refused the request or could not finish it."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error
        self.status = _STATUS[error.kind]
        self.kind = error.kind.value


class UnknownSession(FrontError):
    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_session"


class UnknownRequest(FrontError):
    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_request"


class UnknownNode(FrontError):
    status = grpc.StatusCode.NOT_FOUND
    kind = "unknown_node"


class SessionBusy(FrontError):
    status = grpc.StatusCode.FAILED_PRECONDITION
    kind = "session_busy"


class SessionLimit(FrontError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "session_limit"


class DuplicateRequest(FrontError):
    status = grpc.StatusCode.ALREADY_EXISTS
    kind = "duplicate_request"


class SlowReader(FrontError):
    """The client does not read its answer as fast as it is made."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "slow_reader"


class RateLimited(FrontError):
    """The caller has used what it may ask for in a minute. retry_after: seconds."""

    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kind = "rate_limited"

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestAborted(FrontError):
    """Somebody else ended the request, and the API has no finish reason for it."""

    status = grpc.StatusCode.ABORTED
    kind = "aborted"


def _trailer(error: FrontError) -> tuple[tuple[str, str], ...]:
    kind = (ERROR_KIND_KEY, error.kind)
    if not isinstance(error, RateLimited):
        return (kind,)
    return (kind, (RETRY_AFTER_KEY, str(math.ceil(1000 * error.retry_after))))


@asynccontextmanager
async def refusals(context: CallContext) -> AsyncIterator[None]:
    """Ends the call with the error's status where the body raises a FrontError."""
    try:
        yield
    except FrontError as error:
        await context.abort(error.status, str(error), _trailer(error))

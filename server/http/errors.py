"""Refusals over HTTP, in OpenAI's shape and in Anthropic's.

OpenAI: a status, and {"error": {message, type, param, code}}. docs/errors.md lists all refusals,
with status and code. 429 and 503 carry Retry-After, in whole seconds. An error after a stream has
begun is sent as one event of the same shape, then [DONE].

Anthropic: a status, and {"type": "error", "error": {type, message}}. Converted from OpenAI's shape,
so every kind has both. Pure.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

import grpc
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from tasuki.server.drain import CallsInProgress
from tasuki.server.errors import InvalidField, PromptTooLong, ServerError

from .headers import SERVER, asks_as_anthropic, http_request_id

log = logging.getLogger(__name__)

_HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
}
_OWN_STATUS = {"picture_too_large": 413}
"""Statuses by kind, if HTTP has a better one than gRPC."""
_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
_CODE = {"too_long": "context_length_exceeded"}
_PLAIN_CODE = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_SERVED = (
    "a node answers at /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and "
    "/v1/models, and its page is /"
)
_RETRY_SECONDS = 1
CHARGED = ("/v1/", "/tokenize", "/detokenize", "/tokenizer_info")
"""Path prefixes of requests charged to the caller's limits. Failures of these requests are
counted."""
CALLS = web.AppKey("calls", CallsInProgress)
"""Key of the application's counter of requests to charged paths."""
RETRIED = (429, 503)
"""HTTP statuses of errors with a retry allowed."""


class HttpRefusal(Exception):
    """A refusal specific to HTTP."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def error_kind(error: Exception) -> str:
    if isinstance(error, HttpRefusal):
        return error.code
    return error.kind if isinstance(error, ServerError) else ServerError.kind


def count_failure(request: web.Request, error: Exception) -> None:
    """Count the request as failed or rejected, by error kind, if its path is CHARGED."""
    _count(request, error_kind(error))


def _count(request: web.Request, kind: str) -> None:
    calls = request.app.get(CALLS)
    if calls is not None and request.path.startswith(CHARGED):
        calls.failed(kind)


def error_status(error: Exception) -> int:
    if isinstance(error, HttpRefusal):
        return error.status
    if not isinstance(error, ServerError):
        return 500
    return _OWN_STATUS.get(error.kind, _HTTP[error.status])


def error_body(error: Exception) -> dict[str, Any]:
    """Return the JSON body for an error in OpenAI's shape. An error other than ServerError and
    HttpRefusal shows no details to the client."""
    message, code = "internal error: see this node's log", "internal"
    if isinstance(error, HttpRefusal):
        message, code = str(error), error.code
    elif isinstance(error, ServerError):
        message, code = str(error), _CODE.get(error.kind, error.kind)
    field = error.field if isinstance(error, InvalidField | PromptTooLong) else None
    return _shape(error_status(error), message, code, field)


@web.middleware
async def typed_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn a handler's exception, except ConnectionError, into an HTTP answer with the error's
    status and body. A middleware."""
    try:
        return await handler(request)
    except (ServerError, HttpRefusal) as error:
        count_failure(request, error)
        seconds = retry_seconds(error)
        return _response(request, error_status(error), error_body(error), seconds)
    except web.HTTPException as error:
        code = _PLAIN_CODE.get(error.status, "invalid")
        _count(request, code)
        body = _shape(error.status, _plain_message(request, error), code, None)
        response = _response(request, error.status, body)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except ConnectionError:
        raise
    except Exception as error:
        log.exception("%s %s failed", request.method, request.path)
        count_failure(request, error)
        return _response(request, 500, error_body(error))


class TypedRequestHandler(web.RequestHandler):
    """The protocol of a connection. Its refusals without a request (for a malformed head, for
    example) have the shape of other errors."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # The base method logs, closes the connection, and raises if an answer has begun.
        response = super().handle_error(request, status, exc, message)
        text = error_body(exc if isinstance(exc, Exception) else Exception())
        if status != 500:
            lines = (message or "").split("\n")
            complaint = f"the request is no HTTP/1.1: {' '.join(filter(None, lines)):.200}"
            text = _shape(status, complaint, _PLAIN_CODE.get(status, "invalid"), None)
        plain = web.json_response(text, status=response.status)
        plain.headers[hdrs.SERVER] = SERVER
        plain.force_close()
        return plain


def _plain_message(request: web.Request, error: web.HTTPException) -> str:
    """Return the message to the client for an error in a request without a handler."""
    asked = f"{request.method} {request.path!r:.200} is not served here"
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"{asked}: ask by {' or '.join(sorted(error.allowed_methods))}"
    return f"{asked}: {_SERVED}" if error.status == 404 else error.reason


def _shape(status: int, message: str, code: str, field: str | None) -> dict[str, Any]:
    kind = _TYPE.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def retry_seconds(error: Exception) -> int:
    """Return the seconds until a new try may help, for the header Retry-After."""
    if isinstance(error, ServerError) and error.retry_after is not None:
        return max(_RETRY_SECONDS, math.ceil(error.retry_after))
    return _RETRY_SECONDS


def _response(
    request: web.Request, status: int, body: dict[str, Any], seconds: int = _RETRY_SECONDS
) -> web.Response:
    headers = {"Retry-After": str(seconds)} if status in RETRIED else None
    if asks_as_anthropic(request):
        shown = anthropic_error(status, body, http_request_id(request))
        status, body = anthropic_status(status, body["error"]["code"]), shown
    return web.json_response(body, status=status, headers=headers)


_OVERLOADED = 529
# Anthropic's clients expect another number for these statuses.
_ANTHROPIC_STATUS = {501: 400, 503: _OVERLOADED}
_ELSEWHERE = ("draining", "behind")
"""Error codes kept at status 503 in Anthropic's shape. For 503, but not for 529, reverse proxies
try another node."""
_ANTHROPIC_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    _OVERLOADED: "overloaded_error",
}
# Agents shorten their conversation after this text.
_TOO_LONG = "prompt is too long: "


def anthropic_status(status: int, code: str) -> int:
    """Return the status in Anthropic's API for a refusal. status, code: status and code of the
    refusal in OpenAI's shape."""
    return status if code in _ELSEWHERE else _ANTHROPIC_STATUS.get(status, status)


def anthropic_error(status: int, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return a refusal's body in Anthropic's shape. status, body: status and body of the refusal in
    OpenAI's shape."""
    error = body["error"]
    too_long = error["code"] == "context_length_exceeded"
    default = "api_error" if status >= 500 else "invalid_request_error"
    shown = {
        "type": _ANTHROPIC_TYPE.get(anthropic_status(status, error["code"]), default),
        "message": (_TOO_LONG if too_long else "") + error["message"],
    }
    return {"type": "error", "error": shown, "request_id": request_id}

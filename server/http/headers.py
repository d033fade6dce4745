"""Headers of every HTTP answer: its request's id, and headers added by its handler.

Request ids: the client's `x-request-id` if usable, otherwise a new one. One event loop's thread.
Invariant: every answer carries its request's id, refusals included. A caller's requests in progress
have different ids (EngineClient.admitted), so a proxy may send a request twice at the same time.

add_header(): for a request's handler. One event loop's thread; before the answer begins, any
thread.
"""

from uuid import uuid4

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from tasuki.engine.messages import RequestId
from tasuki.server.request_checks import MAX_REQUEST_ID
from tasuki.utils.program import package_version

REQUEST_ID_HEADER = "x-request-id"
_ANTHROPIC_HEADER = "request-id"
_ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/")

_ID = web.RequestKey("request_id", str)


@web.middleware
async def name_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Set the request's id: the client's if it is short printable ASCII, or a new one. Run it
    before any middleware, because a middleware may reject the request."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    usable = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    request[_ID] = given if usable else uuid4().hex
    return await handler(request)


def http_request_id(request: web.Request) -> RequestId:
    """Return the request's id, as used in the header, in logs, and by `tasuki explain`."""
    return RequestId(request[_ID])


def rename_request(request: web.Request, request_id: RequestId) -> None:
    """Set another id for the request and its answer, because the given id was taken."""
    request[_ID] = request_id


def asks_as_anthropic(request: web.Request) -> bool:
    """Return True if the request's path is one of Anthropic's API."""
    return request.path == _ANTHROPIC_PATHS[0] or request.path.startswith(_ANTHROPIC_PATHS[1])


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Add the request's id to the answer's headers, also Anthropic's. For `on_response_prepare`."""
    if _ID in request:
        response.headers[REQUEST_ID_HEADER] = request[_ID]
        if asks_as_anthropic(request):
            response.headers[_ANTHROPIC_HEADER] = request[_ID]


SERVER = f"tasuki/{package_version().strip('()').replace(' ', '-')}"
"""The value of the header `Server`, in place of aiohttp's and Python's."""

_HEADERS = web.RequestKey("answer_headers", dict[str, str])


def add_header(request: web.Request, name: str, value: str) -> None:
    """Set a header of the request's answer, in place of an earlier one. value: printable ASCII.
    REQUIRES: the answer has not begun."""
    request.setdefault(_HEADERS, {})[name] = value


async def send_added_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add `Server` and the headers from add_header() to the answer. For `on_response_prepare`."""
    response.headers[hdrs.SERVER] = SERVER
    response.headers.update(request.get(_HEADERS, {}))

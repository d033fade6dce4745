"""The id of each HTTP request: the client's `x-request-id` where it can be used, or one of our own.

Owns the ids of requests in progress. One event loop's thread. Invariants: every answer, a refusal
too, carries its request's id; of one caller's requests in progress no two have the same, so that a
proxy may send a request twice at a time.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from aiohttp import web

from tasuki.engine.messages import RequestId
from tasuki.server.auth.caller import Caller
from tasuki.server.request_checks import MAX_REQUEST_ID

from .anthropic_errors import asks_as_anthropic

REQUEST_ID_HEADER = "x-request-id"
_ANTHROPIC_HEADER = "request-id"

_ID = web.RequestKey("request_id", str)


@web.middleware
async def name_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Before any middleware that may refuse the request."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    usable = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    request[_ID] = given if usable else uuid4().hex
    return await handler(request)


def http_request_id(request: web.Request) -> RequestId:
    """The id under which the answer is found: in its header, in logs, by `tasuki explain`."""
    return RequestId(request[_ID])


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`."""
    if _ID in request:
        response.headers[REQUEST_ID_HEADER] = request[_ID]
        if asks_as_anthropic(request):
            response.headers[_ANTHROPIC_HEADER] = request[_ID]


class RequestIds:
    def __init__(self, is_taken: Callable[[Caller, RequestId], bool]) -> None:
        """is_taken: whether a request of the caller that came another way has the id, or one whose
        client has left."""
        self._is_taken = is_taken
        self._held: set[tuple[str, RequestId]] = set()

    @contextmanager
    def held(self, request: web.Request, caller: Caller) -> Iterator[None]:
        """Inside, no other request of the caller has this one's id, which is another one where it
        was taken."""
        given = http_request_id(request)
        if (caller.name, given) in self._held or self._is_taken(caller, given):
            request[_ID] = uuid4().hex
        name = (caller.name, http_request_id(request))
        self._held.add(name)
        try:
            yield
        finally:
            self._held.discard(name)

"""Headers that a request's handler adds to its answer.

One event loop's thread, but for add_header() before the answer begins.
"""

from aiohttp import hdrs, web

from tasuki.utils.version import package_version

SERVER = f"tasuki/{package_version().strip('()').replace(' ', '-')}"
"""The value of `Server`, in place of aiohttp's and Python's."""

_HEADERS = web.RequestKey("answer_headers", dict[str, str])


def add_header(request: web.Request, name: str, value: str) -> None:
    """Have the answer bear it. value: printable ASCII. REQUIRES: the answer has not begun."""
    request.setdefault(_HEADERS, {})[name] = value


async def send_added_headers(request: web.Request, response: web.StreamResponse) -> None:
    """For `on_response_prepare`."""
    response.headers[hdrs.SERVER] = SERVER
    response.headers.update(request.get(_HEADERS, {}))

"""A reply of one JSON body, whose memory is its request's until the client has read it.

One event loop's thread. aiohttp ends a handler before its client has read the reply, and what waits
in the connection would be counted nowhere.
"""

from aiohttp import web


async def send_json(request: web.Request, body: bytes) -> web.StreamResponse:
    """Send the body, and return the response once nearly all of it has left.

    A client that has gone ends the wait: its connection is lost, and the handler is cancelled.
    """
    response = web.Response(body=body, content_type="application/json", charset="utf-8")
    await response.prepare(request)
    await response.write_eof()
    await request.writer.drain()
    return response

"""What clients ask of responses in the background: their events again, and their end.

One event loop's thread.
"""

import msgspec
from aiohttp import web

from tasuki.server.errors import InvalidField
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.event_stream import EventStream
from tasuki.server.replies.reply import KEEP_ALIVE_COMMENT

from .event_log import EventLog

_FALSE = ("false", "0", "")
_TRUE = ("true", "1")


def asks_for_stream(request: web.Request) -> bool:
    """Raises InvalidField."""
    asked = request.query.get("stream", "").lower()
    if asked not in (*_FALSE, *_TRUE):
        raise InvalidField("stream", f"must be true or false, not {asked:.20}")
    return asked in _TRUE


def first_place(request: web.Request) -> int:
    """Return the number of the first event that is asked for. Raises InvalidField."""
    after = request.query.get("starting_after")
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 16):
        raise InvalidField("starting_after", f"must be an event's number, not {after:.20}")
    return int(after) + 1


async def follow(request: web.Request, events: EventLog, place: int) -> web.StreamResponse:
    """Send the events from that place on, as they come, to the last. A client that leaves ends
    nothing but this."""
    stream = EventStream(request, lambda: KEEP_ALIVE_COMMENT)
    await stream.prepare()
    try:
        while True:
            some, place = events.since(place)
            if some:
                await stream.write(some)
            elif events.closed:
                break
            else:
                await events.grown()
    except ConnectionError:
        return stream.response
    finally:
        stream.keep_no_longer()
    await stream.end(b"")
    return stream.response


class _Background(msgspec.Struct):
    background: bool = False


def is_of_background(body: bytes) -> bool:
    """Whether a stored response was made so. body: its JSON, which is looked through."""
    return msgspec.json.decode(body, type=_Background).background


def not_in_background(name: str) -> HttpRefusal:
    return HttpRefusal(
        400, "not_in_background", f"response {name!r:.100} was not made with background: true"
    )

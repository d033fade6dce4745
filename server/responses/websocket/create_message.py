"""What a client's message on a WebSocket asks: a response, or that a prompt be computed beforehand.

On any thread.
"""

from aiohttp import web

from tasuki.server.errors import InvalidField
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.responses.response_request import (
    AskedResponse,
    TooLongResponse,
    read_response_request,
)

from .socket_turns import SocketTurns
from .warm_up import EmptyResponse, read_warm_up

_CREATE = "response.create"


Asked = AskedResponse | TooLongResponse | EmptyResponse


def previous_id(fields: RequestFields) -> str | None:
    """Return the previous response's id; None: it is no text."""
    name = fields.get("previous_response_id")
    return name if isinstance(name, str) else None


def read_create(
    model: ServedModel, turns: SocketTurns, request: web.Request, fields: RequestFields
) -> Asked:
    """Raises as read_response_request()."""
    kind = fields.get("type")
    if kind != _CREATE:
        raise InvalidField("type", f"must be {_CREATE}, not {kind!r:.60}")
    if fields.get("stream") is not None and not fields.flag("stream"):
        raise InvalidField("stream", "must be left out: a socket has every response as events")
    is_asked = fields.get("generate") is None or fields.flag("generate")
    fields.refuse_but("background", (False,))
    model.named(fields.text("model"))
    body = fields.changed(type=None, generate=None, stream=True)
    if is_asked:
        return read_response_request(model, turns, request, body)
    return read_warm_up(model, turns, request, body)

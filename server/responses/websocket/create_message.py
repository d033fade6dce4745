"""What a client's message on a WebSocket asks: a response, or that a prompt be computed beforehand.

On any thread.
"""

from dataclasses import dataclass, replace

from aiohttp import web

from tasuki.server.errors import InvalidField
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.responses.response_request import (
    AskedResponse,
    TooLongResponse,
    read_empty_response,
    read_response_request,
)
from tasuki.server.responses.response_writer import ResponseWriter

from .socket_turns import SocketTurns

_CREATE = "response.create"


@dataclass(frozen=True)
class EmptyResponse:
    """There is nothing to compute yet."""

    writer: ResponseWriter


Asked = AskedResponse | TooLongResponse | EmptyResponse


def previous_id(fields: RequestFields) -> str | None:
    """Return the id of the response that is gone on from, where it is a text."""
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
    if not fields.get("input") and previous_id(fields) is None:
        return EmptyResponse(read_empty_response(model, turns, request, body))
    asked = read_response_request(model, turns, request, body)
    if isinstance(asked, TooLongResponse):
        return asked
    sampling = replace(asked.submit.sampling, max_new_tokens=0, min_tokens=0, grammar=None)
    options = replace(asked.options, asked=None, sampling=sampling)
    submit = replace(asked.submit, sampling=sampling)
    asked.writer.leave_unanswered()
    return replace(asked, submit=submit, options=options)

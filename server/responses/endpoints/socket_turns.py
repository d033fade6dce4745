"""Turns of a WebSocket that are not stored: its last response, and a prompt computed beforehand.

SocketTurns: The last response of a WebSocket, which the next one goes on from though it is not
stored. Owns that response, and its count against its caller. One socket. Any thread reads; the
event loop's writes. Invariant: one response at most is kept, by its own bytes; where these are too
many for its caller, none is.

read_warm_up(): A prompt that is computed before its answer is asked for (`generate: false`). On any
thread. What is computed is the beginning that the next prompt has whatever comes behind the
conversation: up to the end of its last message. A template need not take a conversation that has no
question yet, so it is rendered with one.
"""

from dataclasses import dataclass, replace

import numpy as np
from aiohttp import web

from tasuki.server.auth.limits import Hold, submit_bytes
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.errors import ServerError
from tasuki.server.openai.generation import ServedModel, read_submit
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.responses.asked_turn import AskedTurn, keeper, read_turn
from tasuki.server.responses.response_request import (
    AskedResponse,
    read_response_options,
    refuse_unserved,
    response_head,
)
from tasuki.server.responses.response_writer import ResponseWriter
from tasuki.server.responses.stored_responses import (
    NO_CONTEXT,
    Responses,
    StoredResponse,
    StoredValues,
    TurnRecord,
)
from tasuki.server.responses.tools import read_response_tools
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import Thinking
from tasuki.server.text.text_codec import TextCodec


class SocketTurns:
    """As Responses, of which it has all."""

    def __init__(self, store: Responses, hold: Hold) -> None:
        """hold: of the response that is kept."""
        self._store = store
        self._hold = hold
        self._last: StoredResponse | None = None

    @property
    def values(self) -> StoredValues | None:
        return self._store.values

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        self._store.put(context, response)
        self.unstored(context, response)

    def unstored(self, context: RequestContext, response: StoredResponse) -> None:
        """Keep it here alone."""
        self._last = None
        try:
            self._hold.resize(response.size)
        except ServerError:
            # The client sends the whole conversation then, as it would over a new socket.
            self._hold.resize(0)
        else:
            self._last = response

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        last = self._last
        if last is not None and last.id == response_id:
            return last
        return self._store.get(context, response_id)

    def drop(self, response_id: str | None) -> None:
        """Forget the last response, if it has this id: the one behind it failed."""
        if self._last is not None and self._last.id == response_id:
            self._last = None
            self._hold.resize(0)


_QUESTIONS = (ChatMessage("user", "?"), ChatMessage("user", "What"))
"""Any two that differ from their first letter on."""


@dataclass(frozen=True)
class EmptyResponse:
    """There is nothing to compute yet."""

    writer: ResponseWriter


def read_warm_up(
    model: ServedModel, turns: SocketTurns, request: web.Request, fields: RequestFields
) -> AskedResponse | EmptyResponse:
    """Raises InvalidRequest, PromptTooLong, PermissionDenied, HttpRefusal."""
    refuse_unserved(fields)
    tools = read_response_tools(fields)
    if fields.get("input") is None:
        fields = fields.changed(input=[])
    turn = read_turn(model, turns, request, fields, tools)
    begun = _beginning(model.codec, turn)
    options = read_response_options(model, fields, model.max_tokens)
    sampling = replace(options.sampling, max_new_tokens=0, min_tokens=0)
    options = replace(options, sampling=sampling)
    head = response_head(model, request, fields, options)
    writer = ResponseWriter(head, AnswerParser(Thinking.NEVER, ()), tools)
    writer.leave_unanswered()
    size = head.kept_bytes
    keep = keeper(turns, request, fields, turn.named)
    if keep is not None:
        record = TurnRecord(begun.tokens, turn.messages, NO_CONTEXT)
        writer.keep(record, keep)
        size += record.kept_bytes
    if not len(begun.tokens):
        return EmptyResponse(writer)
    submit = read_submit(request, fields, begun, options, model)
    return AskedResponse(submit, options, writer, size + submit_bytes(submit))


def _beginning(codec: TextCodec, turn: AskedTurn) -> RenderedPrompt:
    """Return the tokens that prompts with any question begin with, up to the last message's end
    where that is marked; no tokens where nothing stands before the question."""
    settings = turn.settings
    if not turn.messages and settings.instructions is None and not settings.tools:
        return RenderedPrompt(np.empty(0, dtype=np.int32))
    first, second = (turn.prompt(codec, question) for question in _QUESTIONS)
    length = min(len(first.tokens), len(second.tokens))
    differ = np.flatnonzero(first.tokens[:length] != second.tokens[:length])
    common = int(differ[0]) if len(differ) else length
    marks = tuple(mark for mark in first.marks if mark <= common)
    return RenderedPrompt(first.tokens[: marks[-1] if marks else common], marks)

"""POST /v1/responses/compact: a conversation shortened to a summary by the served model.

The prompt is the conversation, then a question for its summary. The instructions and tools are
those of the conversation's turns, so the prompt begins like theirs and nearly all of it is cached.
The request is read on any thread.

CompactionWriter: a reply in the form of OpenAI's `response.compaction`: items kept from the
conversation, then an item with the summary. Owns the summary so far. One answer, one thread.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.auth.limits import submit_bytes, value_bytes
from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.http.access import http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.generation import ServedModel, prompt_salt, read_submit
from tasuki.server.openai.request_fields import RequestFields, check_account_fields
from tasuki.server.openai.sampling import AnswerOptions, read_options
from tasuki.server.openapi.responses_fields import OF_COMPACT
from tasuki.server.pictures.part_reader import pictures_read
from tasuki.server.pictures.sent_picture import SentPicture
from tasuki.server.responses.asked_turn import (
    PromptSettings,
    previous_response,
    template_variables,
    turn_prompt,
)
from tasuki.server.responses.input_items import SUMMARY_LEAD, compaction_item, read_input
from tasuki.server.responses.listed_pictures import input_parts, pictures_of
from tasuki.server.responses.response_writer import response_usage
from tasuki.server.responses.stored_responses import Responses, StoredItems, StoredTurn, item_id
from tasuki.server.responses.tools import read_response_tools
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import AnswerItem, Content, Ending, GrowingText, Piece

_KEPT_OF_LETTER = 4
"""Bytes of memory for each character of the summary, the writing of the reply included."""


class CompactionWriter:
    """An AnswerWriter for the reply of a compaction. It writes no stream."""

    keeps = True

    def __init__(
        self, response_id: str, kept: Sequence[dict[str, Any]], parser: AnswerParser
    ) -> None:
        """kept: items of the conversation repeated in the reply. parser: parser of the model's
        answer; its reasoning and calls are dropped, its content is the summary."""
        self.id = response_id
        self.may_complete = parser.may_complete
        self._kept = kept
        self._parser = parser
        self._summary = GrowingText()
        self._usage: dict[str, Any] = {}
        self._letters = 0

    @property
    def complete(self) -> bool:
        return self._parser.complete

    @property
    def kept_bytes(self) -> int:
        return _KEPT_OF_LETTER * self._letters

    def opening(self) -> bytes:
        return b""

    def piece(self, piece: Piece) -> bytes:
        self._add(self._parser.push(piece))
        return b""

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        self._add(self._parser.push(rest))
        self._add(self._parser.finish(ending))
        self._usage = response_usage(self._parser.ending(ending), with_hit=False)
        return b""

    def failure(self, error: Exception) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return b""

    def whole(self) -> dict[str, Any]:
        """Return the JSON body of the reply. Raises HttpRefusal if the model wrote no summary,
        because the client would lose the messages it replaces."""
        summary = str(self._summary).strip()
        if not summary:
            raise HttpRefusal(
                500, "no_summary", "the model wrote no summary: ask again, or send fewer tools"
            )
        item = compaction_item(item_id("cmp", self.id, len(self._kept)), summary)
        return {
            "id": self.id,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*self._kept, item],
            "usage": self._usage,
        }

    def _add(self, items: list[AnswerItem]) -> None:
        for item in items:
            if isinstance(item, Content):
                self._summary.add(item.text)
                self._letters += len(item.text)


_QUESTION = ChatMessage(
    "user",
    "Summarise our conversation so far, for yourself: you will go on from the summary and from "
    "some of my messages alone. State what I want, what was decided and done, which names, paths, "
    "numbers and lines of code are needed later, what tools returned, and what is left to do. "
    "Write the summary alone, and call no tool.",
)
_QUIET = {"enable_thinking": False}
_MOST_TOKENS = 4096
_SHARE = 4
"""Divisor of the model's context: a summary may have at most a quarter of the context's tokens."""


@dataclass(frozen=True)
class AskedCompaction:
    """A parsed compaction request, and the writer of its reply. kept_bytes: bytes of memory held by
    the request until the reply ends."""

    submit: Submit
    options: AnswerOptions
    writer: CompactionWriter
    kept_bytes: int


def read_compact_request(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedCompaction:
    """Read a compaction request, and render its prompt. Raises InvalidRequest, PromptTooLong,
    PermissionDenied, HttpRefusal."""
    fields.refuse_unknown(OF_COMPACT)
    check_account_fields(fields)
    previous = previous_response(store, request, fields)
    before = None if previous is None else previous.turn
    old = () if before is None else before.messages()
    given = fields.get("input")
    stored = StoredItems(store, http_request_context(request))
    reader = model.picture_reader(() if before is None else before.pictures.sent)
    messages = read_input([] if given is None else given, old, stored, pictures=reader)
    if not messages:
        raise InvalidField("input", "is empty: send at least one item")
    tools = read_response_tools(fields)
    asked = PromptSettings(
        fields.text("instructions"), tools.definitions, template_variables(model.codec, fields)
    )
    limit = min(_MOST_TOKENS, max(1, model.max_tokens // _SHARE))
    salt = prompt_salt(request, fields)
    conversation = _Conversation(messages, tuple(pictures_read(reader)))
    most = model.max_tokens - limit
    prompt = _prompt(model, asked, conversation, before, len(old), salt, most)
    options = read_options(
        RequestFields({"temperature": 0, "max_tokens": limit}),
        *(model.codec, limit, model.sampling_defaults, 0),
    )
    submit = read_submit(request, fields, prompt, options, model)
    response_id = f"resp_{uuid4().hex}"
    costs = [picture.rows * picture.columns for picture in prompt.pictures]
    kept = _kept_items(response_id, conversation, costs, model.max_tokens)
    parser = model.parser(prompt.thinking, tools.definitions, parallel_calls=True)
    writer = CompactionWriter(response_id, kept, parser)
    size = submit_bytes(submit) + value_bytes(tools.definitions) + value_bytes(kept)
    return AskedCompaction(submit, options, writer, size)


@dataclass(frozen=True)
class _Conversation:
    """Messages to be summarised. sent: the pictures of all of them, in their order."""

    messages: Sequence[ChatMessage]
    sent: tuple[SentPicture, ...]

    def newer_half(self) -> "_Conversation":
        """Return the newer half of the messages, from its first user message on. Templates reject a
        conversation beginning with another message. Return no messages if the half has none of the
        user."""
        middle = len(self.messages) // 2 + len(self.messages) % 2
        later = self.messages[middle:]
        questions = (place for place, message in enumerate(later) if message.role == "user")
        first = next(questions, len(later))
        left = later[first:]
        shown = sum(len(message.pictures) for message in left)
        return _Conversation(left, self.sent[len(self.sent) - shown :])


def _prompt(
    model: ServedModel,
    asked: PromptSettings,
    conversation: _Conversation,
    before: StoredTurn | None,
    old: int,
    salt: bytes,
    most: int,
) -> RenderedPrompt:
    """Return the prompt of the conversation and the question for its summary. before: the stored
    turn to continue; None: there is none. old: number of messages of `before`. most: allowed number
    of tokens; the older half of the messages is left out until the prompt has no more. Raises
    PromptTooLong if no message fits."""
    quiet = replace(asked, variables={**asked.variables, **_QUIET})
    if before is not None and before.context == asked.digest:
        # Only the question after the turn's own tokens is rendered differently, so continue the
        # turn.
        before = replace(before, context=quiet.digest)
    while True:
        try:
            messages = [*conversation.messages, _QUESTION]
            prompt = turn_prompt(model, quiet, messages, before, old, salt, conversation.sent)
            if len(prompt.tokens) <= most:
                return prompt
            error = PromptTooLong(
                f"input has {len(prompt.tokens)} tokens, and a summary of it needs room: send less"
            )
        except PromptTooLong as too_long:
            error = too_long
        conversation, before, old = conversation.newer_half(), None, 0
        if not conversation.messages:
            raise error


_LETTERS_OF_TOKEN = 4
"""Characters of text in a token, for the budget of kept messages."""


def _kept_items(
    response_id: str, conversation: _Conversation, costs: Sequence[int], letters: int
) -> list[dict[str, Any]]:
    """Return the items kept in a compacted conversation: the first system message, and the user's
    newest messages with their pictures. costs: tokens of the last pictures, as far as they are
    known. letters: largest number of characters of these user messages; it equals the context's
    number of tokens, so they take about a quarter of the context. A picture counts its tokens as
    text. Earlier summaries are left out, because the new summary contains them."""
    messages, sent = conversation.messages, conversation.sent
    shown = pictures_of(messages, sent)
    known = [*costs]
    kept: list[tuple[ChatMessage, Sequence[SentPicture]]] = []
    for message, pictures in zip(reversed(messages), reversed(shown), strict=True):
        if len(known) < len(pictures):
            break
        seen = sum(known.pop() for _ in pictures)
        if message.role != "user" or message.content.startswith(SUMMARY_LEAD):
            continue
        letters -= len(message.content) + _LETTERS_OF_TOKEN * seen
        if letters < 0:
            break
        kept.append((message, pictures))
    if messages[0].role == "system":
        kept.append((messages[0], ()))
    kept.reverse()
    return [
        {
            "id": item_id("msg", response_id, place),
            "type": "message",
            "status": "completed",
            "role": "developer" if message.role == "system" else "user",
            "content": [*input_parts(message, pictures, urls=True)],
        }
        for place, (message, pictures) in enumerate(kept)
    ]
